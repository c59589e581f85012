/**
 * Templates and hooks of Preact in one import. Values in templates are text: Preact never parses them as markup.
 */
import { Fragment, createContext, h, render } from "preact";
import { useCallback, useContext, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import htm from "htm";

export const html = htm.bind(h);

export {
  Fragment, createContext, h, render,
  useCallback, useContext, useEffect, useId, useLayoutEffect, useMemo, useRef, useState,
};
