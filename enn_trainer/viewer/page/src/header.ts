/** Facts of the replay: its header, the legend and the moments. */

import type { Header, Schema } from "./codec.js";
import { byId, el, named, offer, shown, tag } from "./dom.js";
import { shade } from "./scene.js";
import { SHAPES, unseenBy, type View } from "./view.js";

/** Fill in the title, the facts and the choices of the header. */
export function fillHeader(header: Header): void {
  const { title, about, notes, errors, episodes, sides } = header;
  document.title = title;
  byId("title").replaceChildren(named(title));
  const facts: [Node | string, Node | string][] = [
    ...about.map(([name, fact]): [Node, Node] => [named(name), named(fact)]),
    ...(notes.length ? [["kept small", notes.join(" ")] as [string, string]] : []),
    ...errors.map(([name, error]): [Node, string] => [named(name), `rounded, error at most ${shown(error)}`]),
  ];
  byId("about").replaceChildren(...facts.flatMap(([name, fact]) => [el("dt", {}, name), el("dd", {}, fact)]));
  byId("loss").textContent = notes.length ? "reduced precision" : "full precision";
  offerEpisodes(episodes);
  offer("side", Array.from({ length: sides }, (_, side) => String(side + 1)));
  byId("side").parentElement!.hidden = sides < 2;
  for (const what of ["attention", "influence"] as const)
    byId(what).parentElement!.hidden = !episodes.some((one) => one[what] || isLive(one));
  fillMoments(header);
}

/** Return true if an episode is of a running world, whose server explains every frame. */
export const isLive = ({ about }: Schema): boolean => about !== undefined;

/** Return true if an episode is still played, so that its returns are not known. */
export const isRunning = (schema: Schema): boolean => isLive(schema) && !schema.terminated && !schema.truncated;

/** Return the number of a step in its episode, and how many steps there are. */
export const stepText = ({ steps, numbers }: Schema, step: number): string =>
  numbers ? `step ${numbers[step]} (${step + 1} of ${steps} kept)` : `step ${step} of ${Math.max(steps - 1, 0)}`;

/** Let the episodes there are be chosen from. */
export function offerEpisodes(episodes: Schema[]): void {
  const text = ({ steps, terminated, truncated, about }: Schema, e: number) => {
    const end = truncated ? "cut off" : terminated ? "ended" : about === undefined ? "unfinished" : "under way";
    return `${e + 1} (${about ?? `${steps} steps`}, ${end})`;
  };
  offer("episode", episodes.map(text));
}

/** Show shape and colour of each type. */
export function fillLegend(header: Header, view: View): void {
  const glyphs: Record<(typeof SHAPES)[number], string> = { circle: "●", square: "■", triangle: "▲", diamond: "◆", hexagon: "⬢", star: "★", cross: "✚", pentagon: "⬟" }; // prettier-ignore
  const items = view.types.flatMap(({ position, shape, color }, type) => {
    if (!position.length) return [];
    const glyph = el("span", { "aria-hidden": "true" }, glyphs[SHAPES[shape]]);
    if (typeof color !== "object") glyph.style.color = shade(color);
    const unseen = unseenBy(header, type, null).map((who) => tag(`not seen by ${who}`));
    return [el("li", {}, glyph, " ", named(header.types[type]?.[0] ?? "global"), ...unseen)];
  });
  byId("legend").replaceChildren(...items);
}

function fillMoments({ moments, episodes }: Header): void {
  byId("moments-part").hidden = !moments.length;
  const items = moments.map(([kind, episode, step, side, entity, text]) => {
    const hash = `#e=${episode + 1}&s=${step}${side ? `&p=${side + 1}` : ""}${entity === null ? "" : `&i=${entity}`}`;
    const link = el("a", { href: hash }, el("b", {}, named(kind)), " ", named(text));
    return el("li", {}, link, el("span", { class: "faint" }, ` episode ${episode + 1}, step ${episodes[episode].numbers?.[step] ?? step}`));
  });
  byId("moments").replaceChildren(...items);
}
