/** Keys and controls. */

import { byId, field } from "./dom.js";
import type { Page, Toggle } from "./main.js";

/** Obey keys and controls. */
export function listen(page: Page): void {
  const step = (by: number) => {
    page.play(false);
    void page.go(page.episode, page.step + by);
  };
  const episode = (by: number) => void page.go(page.episode + by, 0);
  const keys: Record<string, () => void> = {
    " ": () => page.play(!page.isPlaying),
    ArrowRight: () => step(1),
    ArrowLeft: () => step(-1),
    "Shift+ArrowRight": () => step(10),
    "Shift+ArrowLeft": () => step(-10),
    Home: () => step(-page.step),
    End: () => step(page.schema.steps),
    "]": () => page.changeSpeed(1),
    "[": () => page.changeSpeed(-1),
    n: () => page.moment(1),
    p: () => page.moment(-1),
    e: () => episode(1),
    E: () => episode(-1),
    s: () => void page.go(page.episode, page.step, (page.side + 1) % page.replay.header.sides),
    j: () => page.selectNext(1),
    k: () => page.selectNext(-1),
    Escape: () => page.select(null),
    a: () => page.toggle("attention"),
    i: () => page.toggle("influence"),
    t: () => page.toggle("trails"),
    l: () => page.toggle("labels"),
    f: () => page.toggle("follow"),
    v: () => page.toggleTable(),
    d: () => page.toggleTheme(),
    "+": () => page.scene?.zoom(1.25),
    "-": () => page.scene?.zoom(0.8),
    "0": () => page.scene?.reset(),
    "Alt+ArrowLeft": () => page.scene?.pan(60, 0),
    "Alt+ArrowRight": () => page.scene?.pan(-60, 0),
    "Alt+ArrowUp": () => page.scene?.pan(0, 60),
    "Alt+ArrowDown": () => page.scene?.pan(0, -60),
    "?": () => byId<HTMLDialogElement>("keys").showModal(),
  };
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || byId<HTMLDialogElement>("keys").open) return;
    if (target.matches("select")) return;
    if (target.matches("input[type=range]") && /^(Arrow|Home|End)/.test(event.key)) return;
    if (target.matches("button, summary, a, input") && event.key === " ") return;
    const prefix = event.altKey ? "Alt+" : event.shiftKey && event.key.startsWith("Arrow") ? "Shift+" : "";
    const act = keys[prefix + event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  const click = (id: string, act: () => void) => byId(id).addEventListener("click", act);
  const buttons = { play: " ", back: "ArrowLeft", forward: "ArrowRight", first: "Home", last: "End", fit: "0", help: "?", theme: "d", table: "v" };
  for (const [id, key] of Object.entries(buttons)) click(id, keys[key]);
  for (const name of Object.keys(page.toggles) as Toggle[]) click(name, () => page.toggle(name));
  const change = (id: string, act: (value: number) => void) =>
    byId(id).addEventListener("input", () => act(Number(field(id).value)));
  change("slider", (value) => step(value - page.step));
  change("episode", (value) => void page.go(value, 0));
  change("side", (value) => void page.go(page.episode, page.step, value));
  change("speed", (value) => (page.speed = value));
  change("layer", () => page.render());
  change("head", () => page.render());
  byId("list-part").addEventListener("toggle", () => page.showList());
  window.addEventListener("hashchange", () => void page.goToHash());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    page.fillLegend();
    page.drawCurves();
  });
}
