/** Frames of a replay, with names in place of columns. */

import { CHUNK_STEPS, VERSION, crc32, decodeChunk, fromBase64, inflate, startsOf } from "./codec.js";
import type { Columns, Header, Numbers, Schema } from "./codec.js";

/** Unpacked bytes of the chunks that are kept; about half of what they take in memory. */
const KEPT_BYTES = 96e6;
const MOST_BYTES = 2 ** 30;

/** An entity of a frame, or what is global in it. */
export interface Entity {
  /** Position in the frame; that of the global one is behind all others. */
  position: number;
  type: number;
  typeName: string;
  /** Equal in two frames of a side if they show the same entity. */
  key: string;
  name: string;
  numbers: number[];
  labels: string[];
  isVisible: boolean;
  isGlobal: boolean;
}

export interface Choice {
  label: string;
  /** Position of the entity that would be selected. */
  target: number | null;
  probability: number;
  beside: number;
  isAllowed: boolean;
  isChosen: boolean;
}

/** An action that an actor takes in a frame. */
export interface Decision {
  action: number;
  name: string;
  actor: number;
  byHand: boolean;
  choices: Choice[];
}

/** Weights of attention: `weight(layer, head, from, to)`. */
export interface Attention {
  layers: number;
  heads: number;
  size: number;
  weights: Float64Array;
}

export interface Influence {
  entities: number[];
  values: number[];
  /** By action, of each entity on each actor. */
  choices: Map<number, number[][]>;
}

export interface Frame {
  episode: number;
  step: number;
  side: number;
  entities: Entity[];
  global: Entity | null;
  readonly decisions: Decision[];
  reward: number;
  value: number;
  besideValue: number;
  attention: Attention | null;
  influence: Influence | null;
  picture: Uint8Array<ArrayBuffer> | null;
}

/** Numbers of every step of an episode and side, nan where they are not known (yet). */
export interface Series {
  reward: Float64Array;
  value: Float64Array;
  besideValue: Float64Array;
  /** Mean entropy of the choices, % of the maximum. */
  entropy: Float64Array;
}

/** A chunk and where the rows of each of its frames begin. */
class Chunk {
  private starts = new Map<string, Float64Array>();

  constructor(
    readonly columns: Columns,
    readonly firstStep: number,
  ) {}

  get(name: string): Numbers {
    return this.columns.get(name)!;
  }

  startsOf(name: string): Float64Array {
    let found = this.starts.get(name);
    if (!found) this.starts.set(name, (found = startsOf(this.get(name))));
    return found;
  }

  /** Where the pairs of an actor and a choice begin, for each actor. */
  pairStarts(action: number, numChoices: number | undefined): Float64Array {
    const name = `pairs ${action}`;
    let found = this.starts.get(name);
    if (!found) {
      const actors = this.get(`actors ${action}`);
      const actees = this.columns.get(`actees ${action}`);
      const widths: number[] = [];
      for (let f = 0; f < actors.length; f++)
        for (let i = 0; i < actors[f]; i++) widths.push(numChoices ?? actees![f]);
      this.starts.set(name, (found = startsOf(widths)));
    }
    return found;
  }
}

export class Replay {
  /** Numbers of the chunks that could not be read. */
  readonly damaged = new Set<number>();
  private chunks = new Map<number, Promise<Chunk | null>>();
  private firstChunk: number[] = [];
  private sizes: number[] = [];
  private series: Series[][];
  private names = new Map<object, Map<number, string>>();

  constructor(
    readonly header: Header,
    private blocks: Map<string, Element>,
  ) {
    let number = 0;
    for (const { chunks } of header.episodes) {
      this.firstChunk.push(number);
      number += chunks.length;
      this.sizes.push(...chunks.map(([, , unpacked]) => unpacked));
    }
    this.series = header.episodes.map(({ steps }) =>
      Array.from({ length: header.sides }, () => {
        const empty = () => new Float64Array(steps).fill(NaN);
        return { reward: empty(), value: empty(), besideValue: empty(), entropy: empty() };
      }),
    );
  }

  /** Read the header of a page. Fails with a sentence for the reader. */
  static async open(elements: Iterable<Element>): Promise<Replay> {
    const blocks = new Map(Array.from(elements, (element) => [element.getAttribute("data-block")!, element]));
    const element = blocks.get("header");
    if (!element) throw new Error("This file has no replay in it: its beginning is missing.");
    let header: Header;
    try {
      const packed = bytesOf(element);
      if (crc32(packed) !== parseInt(element.getAttribute("data-crc")!, 16)) throw new Error("crc");
      header = JSON.parse(new TextDecoder().decode(await inflate(packed, MOST_BYTES)));
    } catch {
      throw new Error("The beginning of this file is damaged, so that nothing of it can be shown.");
    }
    if (header.version !== VERSION) throw new Error("This file and the page in it are of different versions.");
    return new Replay(header, blocks);
  }

  get numChunks(): number {
    return this.firstChunk.at(-1)! + this.header.episodes.at(-1)!.chunks.length;
  }

  seriesOf(episode: number, side: number): Series {
    return this.series[episode][side];
  }

  /** Return a frame; null if its chunk is damaged. */
  async frame(episode: number, step: number, side: number): Promise<Frame | null> {
    const chunk = await this.chunk(episode, Math.floor(step / CHUNK_STEPS));
    return chunk && this.frameOf(chunk, episode, step, side);
  }

  /** Read a chunk of an episode, unless it is at hand. */
  chunk(episode: number, index: number): Promise<Chunk | null> {
    const number = this.firstChunk[episode] + index;
    let found = this.chunks.get(number);
    this.chunks.delete(number); // the oldest are first
    found ??= this.load(episode, index, number);
    this.chunks.set(number, found);
    let bytes = 0;
    for (const kept of [...this.chunks.keys()].reverse()) {
      bytes += this.sizes[kept];
      if (bytes > KEPT_BYTES && kept !== number) this.chunks.delete(kept);
    }
    return found;
  }

  private async load(episode: number, index: number, number: number): Promise<Chunk | null> {
    const schema = this.header.episodes[episode];
    const [crc, size, unpacked] = schema.chunks[index];
    try {
      const packed = bytesOf(this.blocks.get(String(number))!);
      if (packed.length !== size || crc32(packed) !== crc || unpacked > MOST_BYTES) throw new Error("crc");
      const raw = await inflate(packed, unpacked);
      const first = index * CHUNK_STEPS;
      const steps = Math.min(CHUNK_STEPS, schema.steps - first);
      const chunk = new Chunk(decodeChunk(this.header, schema, steps, raw), first);
      this.fillSeries(chunk, episode, steps);
      return chunk;
    } catch {
      this.damaged.add(number);
      return null;
    }
  }

  private fillSeries(chunk: Chunk, episode: number, steps: number): void {
    const { sides, actions } = this.header;
    const schema = this.header.episodes[episode];
    for (let f = 0; f < steps * sides; f++) {
      const series = this.series[episode][f % sides];
      const step = chunk.firstStep + Math.floor(f / sides);
      series.reward[step] = chunk.get("reward")[f];
      series.value[step] = chunk.get("value")[f];
      if (schema.beside) series.besideValue[step] = chunk.get("beside value")[f];
      let total = 0;
      let count = 0;
      actions.forEach(([, , { index_to_label }], a) => {
        if (!schema.probs.includes(a)) return;
        const pairs = chunk.pairStarts(a, index_to_label?.length);
        const probs = chunk.get(`probs ${a}`);
        const mask = chunk.columns.get(`mask ${a}`);
        const actors = chunk.startsOf(`actors ${a}`);
        for (let row = actors[f]; row < actors[f + 1]; row++) {
          let legal = 0;
          let entropy = 0;
          for (let k = pairs[row]; k < pairs[row + 1]; k++) {
            if (!mask || mask[k]) legal++;
            if (probs[k] > 0) entropy -= probs[k] * Math.log(probs[k]);
          }
          if (legal < 2) continue;
          total += entropy / Math.log(legal);
          count++;
        }
      });
      series.entropy[step] = count ? (100 * total) / count : NaN;
    }
  }

  private frameOf(chunk: Chunk, episode: number, step: number, side: number): Frame {
    const { header } = this;
    const schema = header.episodes[episode];
    const f = (step - chunk.firstStep) * header.sides + side;
    const entities: Entity[] = [];
    const decisionsOf = (a: number) => this.decisions(chunk, schema, f, a, entities);
    header.types.forEach(([typeName, , kinds], i) => {
      const starts = chunk.startsOf(`rows ${i}`);
      for (let row = starts[f]; row < starts[f + 1]; row++)
        entities.push(this.entity(chunk, schema, { f, row, side }, i, typeName, kinds, entities.length));
    });
    let global: Entity | null = null;
    const isGlobalActor = header.actions.some(([, kind]) => kind === "GlobalCategoricalActionSpace");
    if (schema.global || isGlobalActor) {
      const i = header.types.length;
      const has = schema.global && chunk.get(`rows ${i}`)[f] > 0;
      const row = has ? chunk.startsOf(`rows ${i}`)[f] : -1;
      global = this.entity(chunk, schema, { f, row, side }, i, "global", header.global[1], entities.length);
    }
    let decisions: Decision[] | null = null;
    return {
      episode,
      step,
      side,
      entities,
      global,
      get decisions() {
        return (decisions ??= header.actions.flatMap((_, a) => decisionsOf(a)));
      },
      reward: chunk.get("reward")[f],
      value: chunk.get("value")[f],
      besideValue: schema.beside ? chunk.get("beside value")[f] : NaN,
      attention: schema.attention ? attentionOf(chunk, f, header.attention === "whole") : null,
      influence: schema.influence ? influenceOf(chunk, f, schema.influence) : null,
      picture: schema.pictures ? pictureOf(chunk, step - chunk.firstStep) : null,
    };
  }

  private entity(
    chunk: Chunk,
    schema: Schema,
    at: { f: number; row: number; side: number },
    type: number,
    typeName: string,
    kinds: [string, string[]][],
    position: number,
  ): Entity {
    const { f, row, side } = at;
    const isGlobal = type === this.header.types.length;
    const names = isGlobal ? this.header.global[0] : this.header.types[type][1];
    const place = isGlobal ? 0 : row - chunk.startsOf(`rows ${type}`)[f];
    let key = isGlobal ? "global" : `${type}#${place}`;
    let name = isGlobal ? "global" : `${typeName} ${place + 1}`;
    if (schema.identity.includes(type) && chunk.get(`identified ${type}`)[f]) {
      const number = chunk.get(`identity ${type}`)[this.identityRow(chunk, type, f, place)];
      key = `id${number}`;
      name = this.namesOf(schema, side, typeName).get(number) ?? `${typeName} ${number}`;
    }
    return {
      position,
      type,
      typeName,
      key,
      name,
      numbers: row < 0 ? [] : names.map((_, j) => chunk.get(`feature ${type} ${j}`)[row]),
      labels: row < 0 ? [] : kinds.map(([, labels], k) => labels[chunk.columns.get(`kind ${type} ${k}`)?.[row] ?? -1] ?? "?"),
      isVisible: !schema.visible.includes(type) || row < 0 || chunk.get(`visible ${type}`)[row] !== 0,
      isGlobal,
    };
  }

  private namesOf(schema: Schema, side: number, typeName: string): Map<number, string> {
    const of = schema.names[side]?.find(([name]) => name === typeName);
    if (!of) return new Map();
    let found = this.names.get(of);
    if (!found) this.names.set(of, (found = new Map(of[1].map((number, i) => [number, of[2][i]]))));
    return found;
  }

  private identityRow(chunk: Chunk, type: number, f: number, place: number): number {
    const name = `ids ${type}`;
    let lengths = chunk.columns.get(name);
    if (!lengths) {
      const known = chunk.get(`identified ${type}`);
      lengths = Uint32Array.from(chunk.get(`rows ${type}`), (rows, g) => (known[g] ? rows : 0));
      chunk.columns.set(name, lengths);
    }
    return chunk.startsOf(name)[f] + place;
  }

  private decisions(chunk: Chunk, schema: Schema, f: number, a: number, entities: Entity[]): Decision[] {
    const [name, , { index_to_label }] = this.header.actions[a];
    const starts = chunk.startsOf(`actors ${a}`);
    const pairs = chunk.pairStarts(a, index_to_label?.length);
    const probs = schema.probs.includes(a) ? chunk.get(`probs ${a}`) : null;
    const beside = schema.beside?.includes(a) ? chunk.get(`beside ${a}`) : null;
    const mask = schema.masks.includes(a) ? chunk.get(`mask ${a}`) : null;
    const byHand = schema.by_hand?.includes(a) ? chunk.get(`by hand ${a}`) : null;
    const firstActee = index_to_label ? 0 : chunk.startsOf(`actees ${a}`)[f];
    const found: Decision[] = [];
    for (let row = starts[f]; row < starts[f + 1]; row++) {
      const choices: Choice[] = [];
      for (let k = pairs[row]; k < pairs[row + 1]; k++) {
        const index = k - pairs[row];
        const target = index_to_label ? null : chunk.get(`actee ${a}`)[firstActee + index];
        choices.push({
          label: index_to_label?.[index] ?? entities[target!].name,
          target,
          probability: probs ? probs[k] : NaN,
          beside: beside ? beside[k] : NaN,
          isAllowed: !mask || mask[k] !== 0,
          isChosen: chunk.get(`chosen ${a}`)[row] === index,
        });
      }
      found.push({ action: a, name, actor: chunk.get(`actor ${a}`)[row], byHand: byHand?.[row] === 1, choices });
    }
    return found;
  }
}

function bytesOf(element: Element): Uint8Array<ArrayBuffer> {
  return fromBase64(element.textContent!);
}

/** Return how many of the frames before `f` are marked, or -1 if it is not marked itself. */
function ordinal(marks: Numbers, f: number): number {
  if (!marks[f]) return -1;
  let count = 0;
  for (let i = 0; i < f; i++) count += marks[i];
  return count;
}

function attentionOf(chunk: Chunk, f: number, isWhole: boolean): Attention | null {
  const k = ordinal(chunk.get("attention"), f);
  if (k < 0) return null;
  const [layers, heads, size] = ["layers", "heads", "size"].map((name) => chunk.get(`attention ${name}`));
  const kept = (i: number) => (isWhole ? size[i] : Math.min(size[i], 4));
  let at = 0;
  for (let i = 0; i < k; i++) at += layers[i] * heads[i] * size[i] * kept(i);
  const n = size[k];
  const rows = layers[k] * heads[k] * n;
  const weights = new Float64Array(rows * n);
  for (let row = 0; row < rows; row++)
    for (let j = 0; j < kept(k); j++, at++) {
      const column = isWhole ? j : chunk.get("attention column")[at];
      weights[row * n + column] = chunk.get("attention weight")[at];
    }
  return { layers: layers[k], heads: heads[k], size: n, weights };
}

/** Return the weight of attention from a row to a column, of a head or (-1) their mean. */
export function attentionWeight(of: Attention, layer: number, head: number, from: number, to: number): number {
  let total = 0;
  let count = 0;
  for (let l = 0; l < of.layers; l++)
    for (let h = 0; h < of.heads; h++) {
      if ((layer >= 0 && l !== layer) || (head >= 0 && h !== head)) continue;
      total += of.weights[((l * of.heads + h) * of.size + from) * of.size + to];
      count++;
    }
  return total / count;
}

function influenceOf(chunk: Chunk, f: number, actions: number[]): Influence | null {
  const marks = chunk.get("influence");
  const k = ordinal(marks, f);
  if (k < 0) return null;
  const starts = chunk.startsOf("influence size");
  const [from, to] = [starts[k], starts[k + 1]];
  const choices = new Map<number, number[][]>();
  for (const a of actions) {
    const actors = chunk.get(`actors ${a}`);
    let at = 0;
    let before = 0;
    for (let g = 0; g < f; g++) if (marks[g]) at += (starts[++before] - starts[before - 1]) * actors[g];
    const cells = chunk.get(`influence ${a}`);
    const rows = Array.from({ length: to - from }, (_, i) =>
      Array.from(cells.subarray(at + i * actors[f], at + (i + 1) * actors[f])),
    );
    choices.set(a, rows);
  }
  return {
    entities: Array.from(chunk.get("influence entity").subarray(from, to)),
    values: Array.from(chunk.get("influence value").subarray(from, to)),
    choices,
  };
}

function pictureOf(chunk: Chunk, step: number): Uint8Array<ArrayBuffer> | null {
  const k = ordinal(chunk.get("picture"), step);
  if (k < 0) return null;
  const starts = chunk.startsOf("picture size");
  return new Uint8Array((chunk.get("picture byte") as Uint8Array).slice(starts[k], starts[k + 1]));
}

/** Return the discounted rewards from each step on; nan from where one of them is not known. */
export function returnsToGo(rewards: Float64Array, discount: number): Float64Array {
  const returns = new Float64Array(rewards.length);
  let next = 0;
  for (let t = rewards.length - 1; t >= 0; t--) returns[t] = next = rewards[t] + discount * next;
  return returns;
}

/** Return the sum of the rewards up to each step. */
export function returnsSoFar(rewards: Float64Array): Float64Array {
  let total = 0;
  return rewards.map((reward) => (total += reward));
}
