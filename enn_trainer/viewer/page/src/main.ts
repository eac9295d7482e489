/** The page: what is shown, and everything that changes it. */

import type { Schema } from "./codec.js";
import { CHUNK_STEPS } from "./codec.js";
import { byId, el } from "./dom.js";
import { fillHeader, fillLegend } from "./header.js";
import { entitiesOf, inspect } from "./inspector.js";
import { listen } from "./keys.js";
import { EntityList } from "./list.js";
import { Replay, returnsToGo } from "./model.js";
import type { Frame } from "./model.js";
import { Scene } from "./scene.js";
import { placeOf, viewOf } from "./view.js";
import type { View } from "./view.js";
import { Curves } from "./timeline.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64];
const TRAIL_STEPS = 24;
const LIST_EVERY_MS = 250;
const root = document.documentElement;

/** What can be shown in the scene or not. */
export type Toggle = "trails" | "follow" | "labels" | "attention" | "influence";

export class Page {
  private view: View;
  scene: Scene | null = null;
  private list: EntityList;
  private curves: Curves;
  episode = 0;
  step = 0;
  side = 0;
  private frame: Frame | null = null;
  private previous: Frame | null = null;
  private selectedKey: string | null = null;
  readonly toggles: Record<Toggle, boolean> = { trails: false, follow: false, labels: false, attention: false, influence: false };
  speed = SPEEDS.indexOf(4);
  isPlaying = false;
  private requests = 0;
  private listTimer = 0;
  private returns: Float64Array = new Float64Array();
  private pictureUrl = "";

  constructor(readonly replay: Replay) {
    const { header } = replay;
    this.view = viewOf(header);
    const seek = (step: number) => void this.go(this.episode, step);
    this.curves = new Curves(byId("curves"), seek);
    const select = (position: number | null) => this.select(position);
    this.list = new EntityList(byId("list"), header, select, () => this.render());
    if (Scene.isFor(this.view)) this.scene = new Scene(byId("canvas"), this.view, select);
    else root.dataset.table = "only";
  }

  get schema(): Schema {
    return this.replay.header.episodes[this.episode];
  }

  async start(): Promise<void> {
    const speeds = SPEEDS.map((speed) => `${speed < 1 ? `1/${1 / speed}` : speed} steps/s`);
    fillHeader(this.replay.header, speeds, this.speed);
    this.fillLegend();
    listen(this);
    await this.goToHash();
    root.dataset.state = "ready";
    await this.readAll();
  }

  /** Read all chunks of the episode once, for its curves, its extent and its damage. */
  private async readAll(): Promise<void> {
    const { episode, schema } = this;
    const before = this.replay.damaged.size;
    for (let i = 0; i < schema.chunks.length; i++) {
      const chunk = await this.replay.chunk(episode, i);
      if (episode !== this.episode) return;
      if (chunk && this.scene && !this.view.bounds) {
        const steps = [0, 16, 32, 48].map((step) => i * CHUNK_STEPS + step).filter((step) => step < schema.steps);
        for (const step of steps) {
          const frame = await this.replay.frame(episode, step, this.side);
          if (frame) this.scene.include(entitiesOf(frame).map((entity) => placeOf(this.view, entity)));
        }
      }
      if (i % 8 === 7) await new Promise((resolve) => setTimeout(resolve)); // for clicks in between
    }
    this.drawCurves();
    this.scene?.draw();
    if (this.replay.damaged.size !== before) this.report();
    root.dataset.read = String(episode);
  }

  private report(): void {
    const names = [...this.replay.damaged].sort((a, b) => a - b).map((number) => `chunk ${number}`);
    if (!names.length) return;
    const verb = names.length > 1 ? "are" : "is";
    byId("problem").textContent = `${names.join(", ")} ${verb} damaged: these steps cannot be shown, the rest can.`;
  }

  drawCurves(): void {
    const series = this.replay.seriesOf(this.episode, this.side);
    this.returns = returnsToGo(series.reward, this.replay.header.discount);
    this.curves.show(series, this.replay.header.discount, this.schema.beside !== null);
    this.curves.seek(this.step);
    this.render();
  }

  fillLegend(): void {
    if (this.scene) fillLegend(this.replay.header, this.view);
  }

  // Going somewhere.

  /** Show a step of an episode, and an entity if one is given; the latest call wins. */
  async go(episode: number, step: number, side = this.side, position?: number | null): Promise<void> {
    const { header } = this.replay;
    const request = ++this.requests;
    const isOther = episode !== this.episode || side !== this.side;
    [this.episode, this.side] = [clamped(episode, header.episodes.length), clamped(side, header.sides)];
    this.step = clamped(step, this.schema.steps);
    const [frame, previous] = await Promise.all([
      this.replay.frame(this.episode, this.step, this.side),
      this.step ? this.replay.frame(this.episode, this.step - 1, this.side) : null,
    ]);
    if (request !== this.requests) return;
    [this.frame, this.previous] = [frame, previous];
    if (position !== undefined) this.selectedKey = this.keyOf(position);
    const trails = await this.trails();
    if (request !== this.requests) return;
    if (isOther) void this.readAll();
    this.render(trails);
    this.writeHash();
  }

  private async trails(): Promise<Map<string, number[][]>> {
    const trails = new Map<string, number[][]>();
    if (!this.toggles.trails || !this.scene) return trails;
    for (let step = Math.max(0, this.step - TRAIL_STEPS); step <= this.step; step++) {
      const frame = await this.replay.frame(this.episode, step, this.side);
      if (!frame) continue;
      const isCrowd = frame.entities.length > 100;
      for (const entity of entitiesOf(frame)) {
        const place = placeOf(this.view, entity);
        if (!place || (isCrowd && entity.key !== this.selectedKey)) continue;
        const trail = trails.get(entity.key);
        if (trail) trail.push(place);
        else trails.set(entity.key, [place]);
      }
    }
    return trails;
  }

  private get selected(): number | null {
    if (!this.frame || this.selectedKey === null) return null;
    return entitiesOf(this.frame).find(({ key }) => key === this.selectedKey)?.position ?? null;
  }

  private lastTrails = new Map<string, number[][]>();

  render(trails = this.lastTrails): void {
    this.lastTrails = trails;
    const { frame, previous, selected } = this;
    Object.assign(root.dataset, { episode: this.episode, step: this.step, side: this.side, selected: selected ?? "" });
    byId<HTMLSelectElement>("episode").value = String(this.episode);
    byId<HTMLSelectElement>("side").value = String(this.side);
    const slider = byId<HTMLInputElement>("slider");
    slider.max = String(this.schema.steps - 1);
    slider.value = String(this.step);
    slider.setAttribute("aria-valuetext", `step ${this.step} of ${this.schema.steps - 1}`);
    byId("step").textContent = `step ${this.step} of ${this.schema.steps - 1}`;
    this.curves.seek(this.step);
    byId("gap").hidden = frame !== null;
    const { attention, influence, labels, follow } = this.toggles;
    const [layer, head] = ["layer", "head"].map((id) => Number(byId<HTMLSelectElement>(id).value));
    this.scene?.show(frame, {
      selected,
      trails,
      showsAttention: attention,
      showsInfluence: influence,
      showsLabels: labels,
      follows: follow,
      layer,
      head,
    });
    if (!frame) {
      byId("inspector").replaceChildren();
      byId("list").replaceChildren();
      this.report();
      return;
    }
    byId("canvas").setAttribute("aria-label", summary(frame));
    this.fillHeads(frame);
    const returnToGo = this.returns[this.step] ?? NaN;
    const { terminated, beside } = this.schema;
    const heads: [number, number] | null = attention ? [layer, head] : null;
    const inspected = { frame, previous, selected, returnToGo, isWhole: terminated, hasBeside: beside !== null, heads };
    inspect(byId("inspector"), this.replay.header, inspected, (position) => this.select(position));
    this.showList();
    this.showPicture(frame);
  }

  /** Show the list of entities after the scene, a few times a second while playing. */
  showList(): void {
    const isOpen = root.dataset.table !== undefined || byId<HTMLDetailsElement>("list-part").open;
    if (!isOpen || this.listTimer) return;
    const wait = this.isPlaying ? LIST_EVERY_MS : 0;
    this.listTimer = window.setTimeout(() => {
      this.listTimer = 0;
      if (this.frame) this.list.show(this.frame, this.previous, this.selected);
      root.dataset.listed = String(this.step);
    }, wait);
  }

  private showPicture({ picture }: Frame): void {
    const image = byId<HTMLImageElement>("picture");
    image.hidden = !picture;
    if (!picture) return;
    URL.revokeObjectURL(this.pictureUrl);
    const type = picture[0] === 0x89 ? "image/png" : "image/webp";
    image.src = this.pictureUrl = URL.createObjectURL(new Blob([picture], { type }));
  }

  private fillHeads({ attention }: Frame): void {
    byId("no-attention").hidden = !this.toggles.attention || attention !== null;
    for (const id of ["layer", "head"]) byId(id).parentElement!.hidden = !this.toggles.attention || !attention;
    if (!attention) return;
    const fill = (id: string, count: number, name: string) => {
      const select = byId<HTMLSelectElement>(id);
      if (select.options.length === count + 1) return;
      const options = Array.from({ length: count }, (_, i) => el("option", { value: i }, `${name} ${i + 1}`));
      select.replaceChildren(el("option", { value: -1 }, `mean of ${name}s`), ...options);
    };
    fill("layer", attention.layers, "layer");
    fill("head", attention.heads, "head");
  }

  select(position: number | null): void {
    void this.go(this.episode, this.step, this.side, position);
  }

  private keyOf(position: number | null): string | null {
    return position === null || !this.frame ? null : (entitiesOf(this.frame)[position]?.key ?? null);
  }

  selectNext(by: number): void {
    const count = this.frame ? entitiesOf(this.frame).length : 0;
    if (!count) return;
    const { selected } = this;
    this.select(selected === null ? (by > 0 ? 0 : count - 1) : (selected + by + count) % count);
  }

  moment(by: number): void {
    const links = [...byId("moments").querySelectorAll("a")];
    const here = links.findIndex((link) => link.hash.split("&i=")[0] === location.hash.split("&i=")[0]);
    if (links.length) location.hash = links[(here + by + links.length) % links.length].hash;
  }

  // Addresses.

  private writeHash(): void {
    const { selected } = this;
    const side = this.replay.header.sides > 1 ? `&p=${this.side + 1}` : "";
    const hash = `#e=${this.episode + 1}&s=${this.step}${side}${selected === null ? "" : `&i=${selected}`}`;
    try {
      history.replaceState(null, "", hash);
    } catch {
      // in a sandboxed frame there is no address to write
    }
  }

  async goToHash(): Promise<void> {
    const asked = new URLSearchParams(location.hash.slice(1));
    const number = (name: string, least: number) => Math.max(Math.trunc(Number(asked.get(name) ?? least)) || least, least);
    const position = asked.has("i") ? number("i", 0) : null;
    await this.go(number("e", 1) - 1, number("s", 0), number("p", 1) - 1, position);
  }

  // Playing.

  play(isPlaying: boolean): void {
    if (this.isPlaying === isPlaying) return;
    this.isPlaying = isPlaying;
    byId("play").textContent = isPlaying ? "pause" : "play";
    root.dataset.playing = String(isPlaying);
    if (isPlaying) void this.run();
    else this.render();
  }

  private async run(): Promise<void> {
    if (this.step === this.schema.steps - 1) await this.go(this.episode, 0);
    let due = 0;
    let last = performance.now();
    while (this.isPlaying && this.step < this.schema.steps - 1) {
      const now = await new Promise<number>(requestAnimationFrame);
      due += ((now - last) / 1000) * SPEEDS[this.speed];
      last = now;
      const steps = Math.floor(due);
      due -= steps;
      if (steps) await this.go(this.episode, this.step + steps);
    }
    this.play(false);
  }

  changeSpeed(by: number): void {
    this.speed = clamped(this.speed + by, SPEEDS.length);
    byId<HTMLSelectElement>("speed").value = String(this.speed);
  }

  // Controls.

  toggle(name: Toggle): void {
    this.toggles[name] = !this.toggles[name];
    byId<HTMLInputElement>(name).checked = this.toggles[name];
    void this.go(this.episode, this.step);
  }

  toggleTheme(): void {
    const isDark = getComputedStyle(root).getPropertyValue("--dark").trim() === "1";
    root.dataset.theme = isDark ? "light" : "dark";
    this.fillLegend();
    this.drawCurves();
  }

  toggleTable(): void {
    if (!this.scene) return;
    if (root.dataset.table) delete root.dataset.table;
    else root.dataset.table = "both";
    this.render();
  }
}

function clamped(index: number, count: number): number {
  return Math.min(Math.max(index, 0), count - 1);
}

/** Return a line on a frame, for those who do not see the scene. */
function summary(frame: Frame): string {
  const counts = new Map<string, number>();
  for (const { typeName } of frame.entities) counts.set(typeName, (counts.get(typeName) ?? 0) + 1);
  const names = [...counts].map(([name, count]) => `${count} ${name}`);
  return `Scene of step ${frame.step}: ${names.join(", ") || "no entities"}. The list of entities says the same.`;
}

async function main(): Promise<void> {
  const problem = byId("problem");
  if (typeof DecompressionStream === "undefined") {
    problem.textContent = "This browser cannot unpack the replay: it has no DecompressionStream. Any browser since 2023 has it.";
    root.dataset.state = "failed";
    return;
  }
  try {
    const replay = await Replay.open(document.querySelectorAll('script[type="application/x-enn-replay"]'));
    await new Page(replay).start();
  } catch (error) {
    problem.textContent = error instanceof Error ? error.message : String(error);
    root.dataset.state = "failed";
  }
}

document.addEventListener("DOMContentLoaded", () => void main());
