/** The connection to a running world: messages of its server, and requests. */

import { fromBase64, type Header, type Schema } from "./codec.js";
import { Replay, type Attention, type Decision, type Frame, type Influence, type Piece } from "./model.js";
import type { Answer, Change } from "./what_if.js";

/** An actor's place, or those of all actors of a side. */
export type Place = [side: number, key: string | null];
export type Actor = [side: number, action: number, actor: number];

export type Message =
  | { type: "welcome"; header: Header; fps: number | null; paused: boolean }
  | { type: "episode"; episode: number; schema: Schema; about: string }
  | { type: "steps"; episode: number; first: number; count: number; raw: string }
  | { type: "waiting"; episode: number; step: number; raw?: string; actors: Actor[]; ms: number | null }
  | { type: "places"; places: Place[]; yours: boolean }
  | { type: "end"; episode: number; terminated: boolean; truncated: boolean }
  | { type: "explained"; episode: number; step: number; side: number; attention: GivenAttention | null; influence: GivenInfluence }
  | ({ type: "what_if" } & Answer)
  | { type: "paused"; on: boolean; fps: number | null }
  | { type: "error"; text: string };

type GivenAttention = { layers: number; heads: number; size: number; weights: string };
type GivenInfluence = { entities: number[]; values: (number | null)[]; choices: [action: number, cells: (number | null)[][]][] };

/** The index of a choice, or numbers. */
export type Chosen = number | number[];

/** The step that people choose in: actors without a choice, the time at which the agent chooses, choices by actor. */
export type Waiting = { episode: number; step: number; actors: Actor[]; until: number | null; chosen: Map<string, Chosen> };

/** Bytes of the steps that are kept, the newest ones. */
const KEPT_BYTES = 256e6;
const KEPT_EXPLANATIONS = 64;

export class Live {
  replay: Replay | null = null;
  places: Place[] = [];
  /** The places are this tab's. */
  isMine = false;
  waiting: Waiting | null = null;
  /** The server has said what is left to choose after the last choice. */
  isAnswered = true;
  isPaused = false;
  fps: number | null = null;
  notice = "";
  hasEnded = false;
  answer: Answer | null = null;
  /** By frame; null while it is requested. */
  private explained = new Map<string, Pick<Frame, "attention" | "influence"> | null>();
  private isExplaining = false;
  /** Episodes of the server, in the order of those of the replay. */
  private numbers: number[] = [];
  private received: [episode: number, piece: Piece][] = [];
  private receivedBytes = 0;

  constructor(readonly token: string, private socket: { send: (text: string) => void }) {} // prettier-ignore

  /** Apply a message. */
  receive(message: Message, now: number): void {
    if (["episode", "steps", "waiting", "end", "error"].includes(message.type)) this.isAnswered = true;
    if (message.type === "welcome") {
      this.replay = new Replay(message.header);
      [this.fps, this.isPaused] = [message.fps, message.paused];
    } else if (message.type === "episode") {
      this.numbers.push(message.episode);
      this.replay!.header.episodes.push({ ...message.schema, about: message.about });
      this.waiting = null;
    } else if (message.type === "steps") {
      this.add(message.episode, message.first, message.count, message.raw);
      if (this.waiting && this.waiting.step < message.first + message.count) this.waiting = null;
    } else if (message.type === "waiting") {
      const { episode, step, raw, actors, ms } = message;
      if (raw !== undefined) this.add(episode, step, 1, raw, true);
      const chosen = this.waiting?.step === step ? this.waiting.chosen : new Map<string, Chosen>();
      this.waiting = { episode: this.numbers.indexOf(episode), step, actors, until: ms === null ? null : now + ms, chosen };
    } else if (message.type === "places") {
      [this.places, this.isMine] = [message.places, message.yours];
    } else if (message.type === "end") {
      const { terminated, truncated } = message;
      Object.assign(this.replay!.header.episodes[this.numbers.indexOf(message.episode)], { terminated, truncated });
      this.waiting = null;
    } else if (message.type === "explained") {
      const { episode, step, side, attention, influence } = message;
      this.isExplaining = false;
      const frame = { episode: this.numbers.indexOf(episode), step, side };
      this.explained.set(nameOf(frame), { attention: attention && attentionOf(attention), influence: influenceOf(influence) });
    } else if (message.type === "what_if") {
      this.answer = { ...message, episode: this.numbers.indexOf(message.episode) };
    } else if (message.type === "paused") {
      [this.isPaused, this.fps] = [message.on, message.fps];
    } else if (message.type === "error") {
      this.isExplaining = false;
      if (!message.text.startsWith("explain:")) this.notice = message.text; // requested without a click
    }
  }

  /** End the game: there is no connection any more. */
  end(reason: string): void {
    this.notice = `Disconnected: ${reason}${this.replay ? "; what was seen stays" : ""}.`;
    [this.hasEnded, this.waiting, this.isMine, this.places] = [true, null, false, []];
    this.isAnswered = true;
  }

  private add(number: number, first: number, steps: number, raw: string, isWaiting = false): void {
    const episode = this.numbers.indexOf(number);
    const piece = { first, steps, size: (raw.length * 3) / 4, unpack: () => fromBase64(raw), isWaiting };
    this.replay!.add(episode, piece);
    void this.replay!.read(episode, piece); // for the curves
    this.received.push([episode, piece]);
    this.receivedBytes += piece.size;
    while (this.receivedBytes > KEPT_BYTES) {
      const [oldest, old] = this.received.shift()!;
      this.receivedBytes -= old.size;
      this.replay!.drop(oldest, old);
    }
  }

  /** Send a request to the server. */
  send(type: string, more: object = {}): void {
    if (this.hasEnded) return;
    if (type !== "explain") this.notice = "";
    this.socket.send(JSON.stringify({ type, ...more }));
  }

  private at({ episode, step }: { episode: number; step: number }): object {
    return { episode: this.numbers[episode], step };
  }

  choose(frame: Frame, action: number, actor: number, choice: Chosen): void {
    this.send("choose", { ...this.at(frame), choices: [[frame.side, action, actor, choice]] });
    this.isAnswered = this.hasEnded;
    if (!this.waiting) return;
    this.waiting.actors = this.waiting.actors.filter((one) => String(one) !== String([frame.side, action, actor]));
    const key = String([frame.side, action, actor]);
    if (this.waiting.chosen.get(key) !== choice) this.forgetAfter(frame.side, action, actor);
    this.waiting.chosen.set(key, choice);
  }

  /** Forget the choices of an actor that depend on another one, as the server does. */
  private forgetAfter(side: number, action: number, actor: number): void {
    const { actions } = this.replay!.header;
    actions.forEach(([, , { after }], a) => {
      if (after !== actions[action][0]) return;
      this.waiting!.chosen.delete(String([side, a, actor]));
      this.forgetAfter(side, a, actor);
    });
  }

  /** Let the agent choose what is left of the step. */
  leaveToAgent(): void {
    if (this.waiting) this.send("agent", this.at(this.waiting));
  }

  requestWhatIf(frame: Frame, changes: Change[]): void {
    this.send("what_if", { ...this.at(frame), side: frame.side, changes });
  }

  /** Request attention and influence of a frame, once. */
  requestExplanation(frame: Frame): void {
    if (this.isExplaining || this.explained.has(nameOf(frame))) return;
    this.isExplaining = true;
    this.explained.set(nameOf(frame), null);
    for (const name of this.explained.keys()) if (this.explained.size > KEPT_EXPLANATIONS) this.explained.delete(name);
    this.send("explain", { ...this.at(frame), side: frame.side });
  }

  /** Return a frame with its explanation, if there is one. */
  withExplanation(frame: Frame): Frame {
    const found = this.explained.get(nameOf(frame));
    return found ? { ...frame, ...found } : frame;
  }

  /** Return true if a decision of a frame that waits is still to be made. */
  isOpen({ side }: Frame, { action, actor }: Decision): boolean {
    return this.waiting!.actors.some((one) => String(one) === String([side, action, actor]));
  }

  /** Return the choice of a decision that a person made while the step waits. */
  chosenIn({ side }: Frame, { action, actor }: Decision): Chosen | undefined {
    return this.waiting?.chosen.get(String([side, action, actor]));
  }

  /** Return true if people choose in this frame. */
  isWaiting({ episode, step }: Frame): boolean {
    return this.waiting?.episode === episode && this.waiting.step === step;
  }
}

const nameOf = ({ episode, step, side }: Pick<Frame, "episode" | "step" | "side">): string => `${episode} ${step} ${side}`;

function attentionOf({ weights, ...sizes }: GivenAttention): Attention {
  return { ...sizes, weights: Float64Array.from(new Float32Array(fromBase64(weights).buffer)) };
}

function influenceOf({ entities, values, choices }: GivenInfluence): Influence {
  const known = (cells: (number | null)[][]) => cells.map((row) => row.map((cell) => cell ?? NaN));
  return { entities, values: values.map((value) => value ?? NaN), choices: new Map(choices.map(([action, cells]) => [action, known(cells)])) };
}

/** Connect to the server of the page; `onChange` is called after each message and at the end. */
export function connect(onChange: (live: Live) => void): void {
  const address = new URL("/live", location.origin);
  address.protocol = address.protocol.replace("http", "ws");
  const socket = new WebSocket(address);
  const live = new Live(new URLSearchParams(location.hash.slice(1)).get("t") ?? "", socket);
  socket.addEventListener("open", () => live.send("hello", { token: live.token }));
  socket.addEventListener("message", ({ data }) => {
    try {
      live.receive(JSON.parse(data), performance.now());
    } catch (error) {
      live.notice = `invalid message of the server: ${error}`;
    }
    onChange(live);
  });
  socket.addEventListener("close", ({ reason }) => {
    live.end(reason || "the server has ended");
    onChange(live);
  });
}
