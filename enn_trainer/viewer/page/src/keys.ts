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
  const keys: Record<string, () => unknown> = {
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
    v: () => page.toggleTable(),
    d: () => page.toggleTheme(),
    "+": () => page.scene?.zoom(1.25),
    "-": () => page.scene?.zoom(0.8),
    "0": () => page.scene?.reset(),
    ".": () => page.goToNewest(),
    h: () => page.hand?.take(false),
    H: () => page.hand?.take(true),
    g: () => page.live?.leaveToAgent(),
    w: () => page.toggleWhatIf(),
    "?": () => byId<HTMLDialogElement>("keys").showModal(),
  };
  for (const [arrow, dx, dy] of [["Left", 60, 0], ["Right", -60, 0], ["Up", 0, 60], ["Down", 0, -60]] as const) // prettier-ignore
    keys[`Alt+Arrow${arrow}`] = () => page.scene?.pan(dx, dy);
  for (let i = 1; i <= 9; i++) keys[i] = () => page.hand?.choose((_, place) => place === i - 1);
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || byId<HTMLDialogElement>("keys").open) return;
    if (target.matches("select, input[type=number]")) return event.key === "Escape" ? target.blur() : undefined;
    if (target.matches("input[type=range]") && /^(Arrow|Home|End)/.test(event.key)) return;
    if (target.matches("button, summary, a, input") && event.key === " ") return;
    const prefix = event.altKey ? "Alt+" : event.shiftKey && event.key.startsWith("Arrow") ? "Shift+" : "";
    const act = keys[prefix + event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  const click = (id: string, act: () => void) => byId(id).addEventListener("click", act);
  const buttons = { play: " ", back: "ArrowLeft", forward: "ArrowRight", first: "Home", last: "End", fit: "0", help: "?", theme: "d" };
  const more = { table: "v", newest: ".", "take-actor": "h", "take-side": "H", leave: "g", "what-if": "w" };
  for (const [id, key] of Object.entries({ ...buttons, ...more })) click(id, keys[key]);
  for (const name of Object.keys(page.toggles) as Toggle[]) click(name, (keys[name[0]] = () => page.toggle(name)));
  const change = (id: string, act: (value: number) => void) =>
    byId(id).addEventListener("input", () => act(Number(field(id).value)));
  change("slider", (value) => step(value - page.step));
  change("episode", (value) => void page.go(value, 0));
  change("side", (value) => void page.go(page.episode, page.step, value));
  change("speed", (value) => (page.speed = value));
  for (const id of ["layer", "head", "advice"]) change(id, () => page.render());
  field("fps").addEventListener("change", () => page.live?.send("fps", { value: Number(field("fps").value) || null }));
  click("pause", () => page.pause());
  for (const type of ["pointerdown", "pointermove", "pointerup", "pointercancel"] as const)
    document.addEventListener(type, ({ buttons }) => page.press(buttons > 0), true);
  byId("list-part").addEventListener("toggle", () => page.showList());
  window.addEventListener("hashchange", () => void page.goToHash());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.redraw());
}
