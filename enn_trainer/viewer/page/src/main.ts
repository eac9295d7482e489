/** The page: what is shown, and everything that changes it. */

import { allTypes, type Header, type Schema } from "./codec.js";
import { byId, field, offer, say, styled } from "./dom.js";
import { Hand, withAdvice } from "./hand.js";
import { fillHeader, fillLegend, isLive, isRunning, offerEpisodes, stepText } from "./header.js";
import { inspect } from "./inspector.js";
import { listen } from "./keys.js";
import { EntityList } from "./list.js";
import { connect, type Live } from "./live.js";
import { Replay, returnsToGo, type Frame } from "./model.js";
import { Scene } from "./scene.js";
import { placeOf, viewOf, type View } from "./view.js";
import { Curves } from "./timeline.js";
import { changed, moved, withChange, type Change } from "./what_if.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64];
const TRAIL_STEPS = 24;
const LIST_EVERY_MS = 250;
const CURVES_EVERY_MS = 500;
const root = document.documentElement;

/** What can be shown in the scene or not. */
export type Toggle = "trails" | "follow" | "labels" | "attention" | "influence";

/** A frame, and the settings by which it is shown. */
export interface Shown {
  header: Header;
  frame: Frame;
  /** What it is compared with: the real one if it is changed. */
  previous: Frame | null;
  selected: number | null;
  returnToGo: number;
  /** Said behind "return" of an episode that is cut off. */
  until: string;
  /** Said of a return that is not known; "" where it is only not finite. */
  unknown: string;
  /** The heading of other probabilities and values, beside those of the agent; null if there are none. */
  beside: string | null;
  /** Called with a change of the frame; null where it cannot be changed. */
  edit: ((change: Change) => void) | null;
  changes: Change[];
  toggles: Record<Toggle, boolean>;
  /** Layer and head whose attention is shown, -1 for their mean. */
  heads: number[];
  /** Earlier places of entities by key, oldest first. */
  trails: Map<string, number[][]>;
  /** Positions that a click chooses. */
  lit: number[];
  select: (position: number | null) => void;
}

export class Page {
  readonly scene: Scene | null = null;
  episode = 0;
  step = 0;
  side = 0;
  /** The newest step of a running world is shown, and the next one when it comes. */
  isNewest = true;
  speed = SPEEDS.indexOf(4);
  isPlaying = false;
  readonly toggles: Record<Toggle, boolean> = { trails: false, follow: false, labels: false, attention: false, influence: false };
  private view: View;
  private list: EntityList;
  private curves: Curves;
  readonly hand: Hand | null = null;
  private frame: Frame | null = null;
  private shown: Shown | null = null;
  private changes: Change[] | null = null;
  private previous: Frame | null = null;
  private selectedKey: string | null = null;
  private trails = new Map<string, number[][]>();
  private returns: Float64Array = new Float64Array();
  private requests = 0;
  private listTimer = 0;
  private pictureUrl = "";
  private isPressed = false;
  private isDue = false;
  private curveTimer = 0;

  // prettier-ignore
  constructor(readonly replay: Replay, readonly live: Live | null = null) {
    const { header } = replay;
    if (live) this.hand = new Hand(this, live);
    this.view = viewOf(header);
    this.curves = new Curves(byId("curves"), (step) => void this.go(this.episode, step));
    const click = (position: number | null) =>
      (position !== null && this.hand?.choose((target) => target === position)) || this.select(position);
    this.list = new EntityList(byId("list"), header, click, () => this.render());
    if (Scene.isFor(this.view)) this.scene = new Scene(byId("canvas"), this.view, click, (...to) => this.move(...to));
    else this.showTable("only");
  }

  get schema(): Schema {
    return this.replay.header.episodes[this.episode];
  }

  /** The last episode of which there are steps. */
  private get newest(): number {
    const { episodes } = this.replay.header;
    return Math.max(episodes.length - (episodes[episodes.length - 1].steps > 0 ? 1 : 2), 0);
  }

  async start(): Promise<void> {
    fillHeader(this.replay.header);
    offer("speed", SPEEDS.map((speed) => `${speed < 1 ? `1/${1 / speed}` : speed} steps/s`)); // prettier-ignore
    this.changeSpeed(0);
    listen(this);
    if (this.live) await this.refresh();
    else await this.goToHash();
    root.dataset.state = "ready";
    await this.readAll();
  }

  /** Read all of the episode once, for its curves, its extent and its damage. */
  private async readAll(): Promise<void> {
    const { episode, side } = this;
    for (const [i, piece] of this.replay.piecesOf(episode).entries()) {
      await this.replay.read(episode, piece);
      for (let step = piece.first; this.scene && !this.view.bounds && step < piece.first + piece.steps; step += 16) {
        const frame = await this.replay.frame(episode, step, side);
        this.scene.include((frame?.all ?? []).map((entity) => placeOf(this.view, entity)));
      }
      if (episode !== this.episode) return;
      if (i % 8 === 7) await new Promise((resolve) => setTimeout(resolve)); // for clicks in between
    }
    this.redraw();
    root.dataset.read = String(episode);
  }

  /** Draw all again that depends on the whole episode, or on the colours. */
  redraw(): void {
    const series = this.replay.seriesOf(this.episode, this.side);
    const { numbers, beside } = this.schema;
    this.returns = returnsToGo(numbers || isRunning(this.schema) ? series.reward.map(() => NaN) : series.reward, this.replay.header.discount);
    this.curves.show(series, this.returns, numbers, beside !== null);
    if (this.scene) fillLegend(this.replay.header, this.view);
    if (!this.live || !this.isPressed) this.render(); // which would undo a drag
  }

  // Going somewhere.

  /** Show a step of an episode, and an entity if one is given; the latest call wins. */
  async go(episode: number, step: number, side = this.side, position?: number | null): Promise<void> {
    const { header } = this.replay;
    const request = ++this.requests;
    const isOther = episode !== this.episode || side !== this.side;
    const isElsewhere = episode !== this.episode || step !== this.step;
    [this.episode, this.side] = [clamped(episode, header.episodes.length), clamped(side, header.sides)];
    if (isOther || isElsewhere) this.changes = null;
    this.step = clamped(step, this.schema.steps);
    if (isElsewhere) this.isNewest = this.step >= this.schema.steps - 1 && this.episode === this.newest;
    const steps = [this.step, this.step - 1];
    const [frame, previous] = await Promise.all(steps.map((one) => this.replay.frame(this.episode, one, this.side)));
    if (request !== this.requests) return;
    [this.frame, this.previous] = [frame, previous];
    if (position !== undefined) this.selectedKey = frame?.all[position ?? -1]?.key ?? null;
    await this.findTrails();
    if (request !== this.requests) return;
    if (isOther) this.returns = new Float64Array(); // those of another episode
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
    const { schema, step, selected, changes } = this;
    const frame = this.seenOf(this.frame);
    Object.assign(root.dataset, { episode: this.episode, step, side: this.side, selected: selected ?? "" });
    field("episode").value = String(this.episode);
    field("side").value = String(this.side);
    const max = Math.max(schema.steps - 1, 0);
    const text = stepText(schema, step);
    Object.assign(field("slider"), { max, value: step, ariaValueText: text });
    byId("step").textContent = text;
    this.curves.seek(step);
    byId("gap").hidden = frame !== null;
    this.shown = frame && {
      header: this.replay.header,
      frame,
      previous: changes ? this.frame : this.previous,
      selected,
      returnToGo: this.returns[step] ?? NaN,
      until: schema.terminated || isRunning(schema) ? "" : " until truncation",
      unknown: schema.numbers ? "unknown, because steps are missing" : isLive(schema) ? "not yet known" : "",
      beside: changes?.length ? "what if" : schema.beside && "other agent",
      edit: changes && ((change) => this.edit([change])),
      changes: changes ?? [],
      toggles: this.toggles,
      heads: ["layer", "head"].map((id) => Number(field(id).value)),
      trails: this.trails,
      lit: this.hand?.targets ?? [],
      select: this.select,
    };
    this.scene?.show(this.shown);
    if (this.live) this.showLive(this.live);
    const damaged = [...this.replay.damaged].sort((a, b) => a - b).map((number) => `chunk ${number}`);
    const damage = `${damaged.join(", ")} ${damaged.length > 1 ? "are" : "is"} damaged: these steps cannot be displayed.`;
    say("problem", this.live?.notice ?? (damaged.length ? damage : ""));
    if (!this.shown || !frame) return ["inspector", "list"].forEach((id) => byId(id).replaceChildren());
    byId("canvas").setAttribute("aria-label", summary(frame, text));
    this.fillHeads(frame);
    inspect(byId("inspector"), this.shown);
    this.showList();
    this.showPicture(frame);
  }

  /** Show the list of entities after the scene, a few times a second while playing. */
  showList(): void {
    const isOpen = root.dataset.table !== undefined || byId<HTMLDetailsElement>("list-part").open;
    if (!isOpen || this.listTimer) return;
    const show = () => {
      this.listTimer = 0;
      if (this.shown) this.list.show(this.shown);
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
      if (count) offer(id, [`mean of ${id}s`, ...Array.from({ length: count }, (_, i) => `${id} ${i + 1}`)], -1);
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
    const token = this.live ? `t=${this.live.token}` : "";
    const here = `e=${this.episode + 1}&s=${this.step}${side}${selected === null ? "" : `&i=${selected}`}`;
    const hash = `#${this.live && this.isNewest ? token : `${token}${token && "&"}${here}`}`;
    try {
      if (hash !== location.hash) history.replaceState(null, "", hash);
    } catch {
      // in a sandboxed frame there is no address to write
    }
  }

  async goToHash(): Promise<void> {
    const fields = new URLSearchParams(location.hash.slice(1));
    const number = (name: string, least: number) => Math.max(Math.trunc(Number(fields.get(name) ?? least)) || least, least);
    const position = fields.has("i") ? number("i", 0) : null;
    await this.go(number("e", 1) - 1, number("s", 0), number("p", 1) - 1, position);
  }

  // Playing.

  play(isPlaying: boolean): void {
    if (this.live && this.isNewest && isPlaying) return this.pause();
    if (this.isPlaying === isPlaying) return;
    this.isPlaying = isPlaying;
    byId("play").textContent = isPlaying ? "pause" : "play";
    root.dataset.playing = String(isPlaying);
    if (isPlaying) void this.run();
    else this.render();
  }

  private async run(): Promise<void> {
    if (this.step === this.schema.steps - 1) await this.go(this.episode, 0);
    let [due, last] = [0, performance.now()];
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
    this.redraw();
  }

  toggleTable(): void {
    if (!this.scene) return;
    if (root.dataset.table) delete root.dataset.table;
    else this.showTable("both");
    this.render();
  }

  private showTable(where: "only" | "both"): void {
    root.dataset.table = where;
    byId<HTMLDetailsElement>("list-part").open = true;
  }

  // A running world.

  /** Show the news of the server, with the next animation frame. */
  refreshSoon(): void {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => void this.refresh());
  }

  /** Wait with news while a button is held down, which would be another one when it is released. */
  press(isPressed: boolean): void {
    if (this.isPressed && !isPressed && this.live) setTimeout(() => this.refreshSoon());
    this.isPressed = isPressed;
  }

  private async refresh(): Promise<void> {
    this.isDue = false;
    const { header } = this.replay;
    if (this.isPressed) return;
    offerEpisodes(header.episodes);
    this.curveTimer ||= window.setTimeout(() => {
      this.curveTimer = 0;
      this.redraw();
    }, CURVES_EVERY_MS);
    if (!this.isNewest || this.changes) return this.render();
    const turn = this.hand!.nextActor();
    await this.go(this.newest, header.episodes[this.newest].steps - 1, turn?.[0], turn?.[2]);
  }

  private showLive({ isPaused, fps, hasEnded }: Live): void {
    root.dataset.live = hasEnded ? "ended" : "on";
    byId("newest").setAttribute("aria-pressed", String(this.isNewest));
    byId("pause").textContent = isPaused ? "resume the game" : "pause the game";
    if (document.activeElement !== field("fps")) field("fps").value = String(fps ?? "");
    byId("what-if").textContent = this.changes ? "back to the original frame" : "what if";
    Object.assign(root.dataset, { paused: isPaused, newest: this.isNewest, changes: this.changes?.length ?? "" });
  }

  /** Return a frame as it is shown. */
  private seenOf(frame: Frame | null): Frame | null {
    const { live, hand, changes } = this;
    if (!frame) hand?.show(null, null);
    if (!frame || !live || !hand) return frame;
    const explained = live.withExplanation(frame);
    const { attention, influence } = this.toggles;
    if ((attention && !explained.attention) || (influence && !explained.influence)) live.requestExplanation(frame);
    const types = allTypes(this.replay.header);
    const found = changes?.length ? changed(explained, changes, live.answer, (type, kind) => types[type][2][kind][1]) : explained;
    hand.show(found, this.selected);
    return withAdvice(found, live, field("advice").value);
  }

  goToNewest(): void {
    this.isNewest = true;
    this.changes = null;
    if (this.live) void this.refresh(); // at once, so that the next key starts from there
  }

  pause(): void {
    this.live?.send("pause", { on: !this.live.isPaused });
  }

  /** Begin to change the frame that is shown, or go back to the real one. */
  toggleWhatIf(): void {
    if (!this.live) return;
    this.changes = this.changes ? null : [];
    this.live.answer = null;
    this.refreshSoon();
  }

  private edit(changes: Change[]): void {
    if (!this.frame || !this.changes) return;
    this.changes = changes.reduce(withChange, this.changes);
    this.live!.requestWhatIf(this.frame, this.changes);
    this.refreshSoon(); // once the focus is where it goes
  }

  private move(position: number, place: number[]): void {
    const entity = this.shown!.frame.all[position];
    this.selectedKey = entity.key;
    this.edit(moved(entity, this.view.types[entity.type].position, place));
  }
}

const clamped = (index: number, count: number): number => Math.max(Math.min(index, count - 1), 0);

/** Return a line on a frame, for those who do not see the scene. */
function summary(frame: Frame, step: string): string {
  const counts = new Map<string, number>();
  for (const { typeName } of frame.entities) counts.set(typeName, (counts.get(typeName) ?? 0) + 1);
  const names = [...counts].map(([name, count]) => `${count} ${name}`);
  return `Scene of ${step}: ${names.join(", ") || "no entities"}. See the list of entities.`;
}

async function main(): Promise<void> {
  try {
    if (typeof DecompressionStream === "undefined")
      throw new Error("This browser cannot unpack the replay: it has no DecompressionStream. Any browser since 2023 has it.");
    if (document.querySelector('script[type="application/x-enn-live"]')) return live();
    const replay = await Replay.open(document.querySelectorAll('script[type="application/x-enn-replay"]'));
    await new Page(replay).start();
  } catch (error) {
    byId("problem").textContent = error instanceof Error ? error.message : String(error);
    root.dataset.state = "failed";
  }
}

/** Show the world of the page's server. */
function live(): void {
  root.dataset.live = "";
  let page: Page | null = null;
  connect((live) => {
    if (page) return page.refreshSoon();
    byId("problem").textContent = live.notice;
    if (!live.replay?.header.episodes.length) return;
    page = new Page(live.replay, live);
    void page.start();
  });
}

document.addEventListener("DOMContentLoaded", () => void main());
