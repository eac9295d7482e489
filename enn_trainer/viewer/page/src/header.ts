/** Facts of the replay: its header, the legend and the moments. */

import type { Header } from "./codec.js";
import { byId, el, named, shown } from "./dom.js";
import { shade } from "./scene.js";
import { SHAPES } from "./view.js";
import type { View } from "./view.js";

/** Fill in the title, the facts and the choices of the header. */
export function fillHeader(header: Header, speeds: string[], speed: number): void {
  document.title = header.title;
  byId("title").replaceChildren(named(header.title));
  const about = byId("about");
  for (const [name, fact] of header.about) about.append(el("dt", {}, named(name)), el("dd", {}, named(fact)));
  if (header.notes.length) about.append(el("dt", {}, "kept small"), el("dd", {}, header.notes.join(" ")));
  for (const [name, error] of header.errors)
    about.append(el("dt", {}, named(name)), el("dd", {}, `rounded, at most ${shown(error)} off`));
  byId("loss").textContent = header.notes.length ? "some numbers are rounded" : "all numbers are whole";
  const episodes = byId<HTMLSelectElement>("episode");
  header.episodes.forEach(({ steps, terminated, truncated }, e) => {
    const end = truncated ? "cut off" : terminated ? "ended" : "unfinished";
    episodes.append(el("option", { value: e }, `${e + 1} (${steps} steps, ${end})`));
  });
  const sides = byId<HTMLSelectElement>("side");
  for (let side = 0; side < header.sides; side++) sides.append(el("option", { value: side }, String(side + 1)));
  sides.parentElement!.hidden = header.sides < 2;
  speeds.forEach((text, i) => byId("speed").append(el("option", { value: i }, text)));
  byId<HTMLSelectElement>("speed").value = String(speed);
  const hasAttention = header.episodes.some(({ attention }) => attention);
  byId("attention").parentElement!.hidden = !hasAttention;
  byId("influence").parentElement!.hidden = !header.episodes.some(({ influence }) => influence);
  fillMoments(header);
}

/** Show shape and colour of each type. */
export function fillLegend(header: Header, view: View): void {
  const glyphs: Record<(typeof SHAPES)[number], string> = { circle: "●", square: "■", triangle: "▲", diamond: "◆", hexagon: "⬢", star: "★", cross: "✚", pentagon: "⬟" }; // prettier-ignore
  const items = view.types.flatMap(({ position, shape, color }, type) => {
    if (!position.length) return [];
    const glyph = el("span", { "aria-hidden": "true" }, glyphs[SHAPES[shape]]);
    if (typeof color !== "object") glyph.style.color = shade(color);
    return [el("li", {}, glyph, " ", named(header.types[type]?.[0] ?? "global"))];
  });
  byId("legend").replaceChildren(...items);
}

function fillMoments({ moments }: Header): void {
  byId("moments-part").hidden = !moments.length;
  const items = moments.map(([kind, episode, step, side, entity, text]) => {
    const hash = `#e=${episode + 1}&s=${step}${side ? `&p=${side + 1}` : ""}${entity === null ? "" : `&i=${entity}`}`;
    return el("li", {}, el("a", { href: hash }, el("b", {}, named(kind)), " ", named(text)), el("span", { class: "faint" }, ` episode ${episode + 1}, step ${step}`));
  });
  byId("moments").replaceChildren(...items);
}
