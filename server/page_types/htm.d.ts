/** Types of htm's templates. */
declare const htm: { bind(h: any): (strings: TemplateStringsArray, ...values: any[]) => any };
export default htm;
