/** Elements of the page. Texts of a world become text nodes, and nothing else. */

type Child = Node | string;

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | number | boolean | undefined> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  element.append(...children);
  return element;
}

/** A name of a world: cut where it is long, and apart from the direction of the text around it. */
export function named(text: string): HTMLElement {
  const shown = text.length > 80 ? `${text.slice(0, 79)}…` : text;
  return el("bdi", { title: text.length > 80 ? text.slice(0, 2000) : undefined }, shown);
}

export function byId<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

/** Return a number as it is read, in at most 5 digits. */
export function shown(value: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(+value.toPrecision(5));
  return text.replace("-", "−");
}

export function percent(probability: number): string {
  if (!Number.isFinite(probability)) return shown(probability);
  return probability > 0 && probability < 0.001 ? "<0.1%" : `${(100 * probability).toFixed(1)}%`;
}
