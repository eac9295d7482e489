/** Elements of the page. Texts of a world become text nodes, and nothing else. */

/** What an element holds; nothing for null and false. */
export type Child = Node | string | null | false;
/** Attributes, and what is done at events. */
type Attributes = Record<string, string | number | boolean | undefined | ((event: Event) => void)>;

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== false));
  return element;
}

/** A button; one that reads like a link unless another class is given. */
export function button(child: Child, click: () => void, attributes: Attributes = { class: "link" }): HTMLElement {
  return el("button", { type: "button", click, ...attributes }, child);
}

export const tag = (text: string, kind = "") => el("span", { class: `tag ${kind}` }, named(text));
export const faint = (text: string) => el("p", { class: "faint" }, text);

/** A row of a table: a heading of one or more children, and cells. */
export function row(attributes: Attributes, heading: Child | Child[], ...cells: Child[]): HTMLElement {
  return el("tr", attributes, el("th", { scope: "row" }, ...[heading].flat()), ...cells.map((cell) => inCell(cell, "td", {})));
}

export function table(attributes: Attributes, caption: Child[], headings: Child[], rows: Node[]): HTMLElement {
  const head = el("tr", {}, ...headings.map((heading) => inCell(heading, "th", { scope: "col" })));
  return el("table", attributes, caption.length > 0 && el("caption", {}, ...caption), el("thead", {}, head), el("tbody", {}, ...rows));
}

function inCell(child: Child, tag: "th" | "td", attributes: Attributes): Node {
  return child instanceof HTMLTableCellElement ? child : el(tag, attributes, child);
}

/** Let a select offer texts, the values of which are 0, 1, ... or those from `first` on; unless it does. */
export function offer(id: string, texts: string[], first = 0): void {
  if (byId(id).textContent === texts.join("")) return;
  byId(id).replaceChildren(...texts.map((text, i) => el("option", { value: first + i }, text)));
}

/** Return a colour of the page, light or dark, or another property of its style. */
export function styled(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** A name of a world: cut where it is long, and apart from the direction of the text around it. */
export function named(text: string): HTMLElement {
  const shown = text.length > 80 ? `${text.slice(0, 79)}…` : text;
  return el("bdi", { title: text.length > 80 ? text.slice(0, 2000) : undefined }, shown);
}

export const byId = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;

/** Return a control, with the properties of an input; a select has those that the page uses. */
export const field = (id: string): HTMLInputElement => byId(id);

/** Return a number as it is read, in at most 5 digits. */
export function shown(value: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(+value.toPrecision(5));
  return text.replace("-", "−");
}

export const boundsText = (low: number, high: number) => (Number.isFinite(low) ? `${shown(low)} to ${shown(high)}` : "any");

/** Return numbers as a person types them; those of the agent where nothing is chosen. */
export function numbersText(numbers: { name: string; chosen: number; advised?: number }[]): string {
  return numbers.map(({ name, chosen, advised }) => `${name}=${shown(Number.isNaN(chosen) ? (advised ?? NaN) : chosen)}`).join(" ");
}

export function percent(probability: number): string {
  if (!Number.isFinite(probability)) return shown(probability);
  return probability > 0 && probability < 0.001 ? "<0.1%" : `${(100 * probability).toFixed(1)}%`;
}

/** Set a text if it is another one, so that it is read out once. */
export function say(id: string, text: string): void {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}
