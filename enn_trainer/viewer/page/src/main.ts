/** The page: what is shown, and everything that changes it. */

import type { Schema } from "./codec.js";
import { byId, field, offer, styled } from "./dom.js";
import { fillHeader, fillLegend } from "./header.js";
import { inspect } from "./inspector.js";
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
  readonly scene: Scene | null = null;
  episode = 0;
  step = 0;
  side = 0;
  speed = SPEEDS.indexOf(4);
  isPlaying = false;
  readonly toggles: Record<Toggle, boolean> = { trails: false, follow: false, labels: false, attention: false, influence: false };
  private view: View;
  private list: EntityList;
  private curves: Curves;
  private frame: Frame | null = null;
  private previous: Frame | null = null;
  private selectedKey: string | null = null;
  private trails = new Map<string, number[][]>();
  private returns: Float64Array = new Float64Array();
  private requests = 0;
  private listTimer = 0;
  private pictureUrl = "";

  constructor(readonly replay: Replay) {
    const { header } = replay;
    this.view = viewOf(header);
    this.curves = new Curves(byId("curves"), (step) => void this.go(this.episode, step));
    this.list = new EntityList(byId("list"), header, this.select, () => this.render());
    if (Scene.isFor(this.view)) this.scene = new Scene(byId("canvas"), this.view, this.select);
    else root.dataset.table = "only";
  }

  get schema(): Schema {
    return this.replay.header.episodes[this.episode];
  }

  async start(): Promise<void> {
    fillHeader(this.replay.header);
    offer("speed", SPEEDS.map((speed) => `${speed < 1 ? `1/${1 / speed}` : speed} steps/s`)); // prettier-ignore
    this.changeSpeed(0);
    this.fillLegend();
    listen(this);
    await this.goToHash();
    root.dataset.state = "ready";
    await this.readAll();
  }

  /** Read all of the episode once, for its curves, its extent and its damage. */
  private async readAll(): Promise<void> {
    const { episode, side } = this;
    const before = this.replay.damaged.size;
    for (const [i, piece] of this.replay.piecesOf(episode).entries()) {
      await this.replay.read(episode, piece);
      for (let step = piece.first; this.scene && !this.view.bounds && step < piece.first + piece.steps; step += 16) {
        const frame = await this.replay.frame(episode, step, side);
        this.scene.include((frame?.all ?? []).map((entity) => placeOf(this.view, entity)));
      }
      if (episode !== this.episode) return;
      if (i % 8 === 7) await new Promise((resolve) => setTimeout(resolve)); // for clicks in between
    }
    this.drawCurves();
    this.scene?.draw();
    if (this.replay.damaged.size !== before) this.report();
    root.dataset.read = String(episode);
  }

  private report(): void {
    const names = [...this.replay.damaged].sort((a, b) => a - b).map((number) => `chunk ${number}`);
    const verb = names.length > 1 ? "are" : "is";
    if (!names.length) return;
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
    if (position !== undefined) this.selectedKey = frame?.all[position ?? -1]?.key ?? null;
    await this.findTrails();
    if (request !== this.requests) return;
    if (isOther) void this.readAll();
    this.render();
    this.writeHash();
  }

  private async findTrails(): Promise<void> {
    const trails = new Map<string, number[][]>();
    for (let step = Math.max(0, this.step - TRAIL_STEPS); this.toggles.trails && this.scene && step <= this.step; step++) {
      const all = (await this.replay.frame(this.episode, step, this.side))?.all ?? [];
      for (const entity of all) {
        const place = placeOf(this.view, entity);
        if (!place || (all.length > 100 && entity.key !== this.selectedKey)) continue;
        trails.set(entity.key, [...(trails.get(entity.key) ?? []), place]);
      }
    }
    this.trails = trails;
  }

  private get selected(): number | null {
    return this.frame?.all.find(({ key }) => key === this.selectedKey)?.position ?? null;
  }

  render(): void {
    const { frame, previous, selected, schema, step, trails, toggles } = this;
    Object.assign(root.dataset, { episode: this.episode, step, side: this.side, selected: selected ?? "" });
    field("episode").value = String(this.episode);
    field("side").value = String(this.side);
    const text = `step ${step} of ${schema.steps - 1}`;
    Object.assign(field("slider"), { max: schema.steps - 1, value: step, ariaValueText: text });
    byId("step").textContent = text;
    this.curves.seek(step);
    byId("gap").hidden = frame !== null;
    const [layer, head] = ["layer", "head"].map((id) => Number(field(id).value));
    this.scene?.show(frame, { selected, trails, toggles, layer, head });
    if (!frame) {
      byId("inspector").replaceChildren();
      byId("list").replaceChildren();
      this.report();
      return;
    }
    byId("canvas").setAttribute("aria-label", summary(frame));
    this.fillHeads(frame);
    inspect(byId("inspector"), {
      header: this.replay.header,
      frame,
      previous,
      selected,
      returnToGo: this.returns[step] ?? NaN,
      isWhole: schema.terminated,
      hasBeside: schema.beside !== null,
      heads: toggles.attention ? [layer, head] : null,
      select: this.select,
    });
    this.showList();
    this.showPicture(frame);
  }

  /** Show the list of entities after the scene, a few times a second while playing. */
  showList(): void {
    const isOpen = root.dataset.table !== undefined || byId<HTMLDetailsElement>("list-part").open;
    if (!isOpen || this.listTimer) return;
    const show = () => {
      this.listTimer = 0;
      if (this.frame) this.list.show(this.frame, this.previous, this.selected);
      root.dataset.listed = String(this.step);
    };
    this.listTimer = window.setTimeout(show, this.isPlaying ? LIST_EVERY_MS : 0);
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
    for (const [id, count] of [["layer", attention?.layers], ["head", attention?.heads]] as const) // prettier-ignore
      if (count && byId<HTMLSelectElement>(id).length !== count + 1)
        offer(id, [`mean of ${id}s`, ...Array.from({ length: count }, (_, i) => `${id} ${i + 1}`)], -1);
  }

  readonly select = (position: number | null): void => {
    void this.go(this.episode, this.step, this.side, position);
  };

  selectNext(by: number): void {
    const count = this.frame?.all.length ?? 0;
    const from = this.selected ?? (by > 0 ? -1 : 0);
    if (count) this.select((from + by + count) % count);
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
    field("speed").value = String(this.speed);
  }

  // Controls.

  toggle(name: Toggle): void {
    this.toggles[name] = !this.toggles[name];
    field(name).checked = this.toggles[name];
    void this.go(this.episode, this.step);
  }

  toggleTheme(): void {
    root.dataset.theme = styled("dark") === "1" ? "light" : "dark";
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
  return Math.max(Math.min(index, count - 1), 0);
}

/** Return a line on a frame, for those who do not see the scene. */
function summary(frame: Frame): string {
  const counts = new Map<string, number>();
  for (const { typeName } of frame.entities) counts.set(typeName, (counts.get(typeName) ?? 0) + 1);
  const names = [...counts].map(([name, count]) => `${count} ${name}`);
  return `Scene of step ${frame.step}: ${names.join(", ") || "no entities"}. The list of entities says the same.`;
}

async function main(): Promise<void> {
  try {
    if (typeof DecompressionStream === "undefined")
      throw new Error("This browser cannot unpack the replay: it has no DecompressionStream. Any browser since 2023 has it.");
    const replay = await Replay.open(document.querySelectorAll('script[type="application/x-enn-replay"]'));
    await new Page(replay).start();
  } catch (error) {
    byId("problem").textContent = error instanceof Error ? error.message : String(error);
    root.dataset.state = "failed";
  }
}

document.addEventListener("DOMContentLoaded", () => void main());
