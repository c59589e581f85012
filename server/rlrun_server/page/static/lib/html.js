/**
 * Templates and hooks of Preact in one import. Values in templates are text: Preact never parses them as markup, and
 * shows characters of users that would be invisible.
 */
import { Fragment, createContext, h, render } from "preact";
import { useCallback, useContext, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import htm from "htm";
import { visibleProps, visibleText } from "./escapes.js";

/** @param {any} type @param {any} props @param {...any} children */
function visible(type, props, ...children) {
  return typeof type === "string" ? h(type, visibleProps(props), ...children.map(visibleText)) : h(type, props, ...children);
}

export const html = htm.bind(visible);

export {
  Fragment, createContext, h, render,
  useCallback, useContext, useEffect, useId, useLayoutEffect, useMemo, useRef, useState,
};
