/** Frames of a replay, with names in place of columns. */

import { CHUNK_STEPS, NUMBERS_SHOWN, VERSIONS, allTypes, crc32, decodeChunk, fromBase64, inflate, sum, type Columns, type Header } from "./codec.js";
import { unseenBy } from "./view.js";

/** Unpacked bytes of the pieces that are kept; about half of what they take in memory. */
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
  /** False if the agent that acts does not know the type. */
  isSeen: boolean;
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
  /** The agent would take it, and a person decides. */
  isAdvised?: boolean;
}

/** A number that an actor chooses. */
export interface Component {
  name: string;
  low: number;
  high: number;
  chosen: number;
  /** Mean, deviation and the ends of the 90% range. */
  shown: number[];
  beside: number[];
  /** Of the agent, where a person decides. */
  advised?: number;
}

/** An action that an actor takes in a frame. */
export interface Decision {
  action: number;
  name: string;
  actor: number;
  /** How many actions come before it. */
  depth: number;
  /** False if it depends on another choice than was made before. */
  isTaken: boolean;
  /** Of numbers, which have no choices. */
  numbers: Component[];
  byHand: boolean;
  /** The agent's choice and probabilities are hidden. */
  isSecret?: boolean;
  choices: Choice[];
}

/** Weights of attention: `weight(layer, head, from, to)`. */
export type Attention = { layers: number; heads: number; size: number; weights: Float64Array };
/** Choices: by action, of each entity on each actor. */
export type Influence = { entities: number[]; values: number[]; choices: Map<number, number[][]> };

export interface Frame {
  episode: number;
  step: number;
  side: number;
  entities: Entity[];
  /** The entities, and behind them what is global if there is anything. */
  all: Entity[];
  readonly decisions: Decision[];
  reward: number;
  value: number;
  besideValue: number;
  attention: Attention | null;
  influence: Influence | null;
  picture: Uint8Array<ArrayBuffer> | null;
}

/** Numbers of every step of an episode and side, nan where they are not known (yet); entropy is in % of its maximum. */
export type Series = Record<"reward" | "value" | "besideValue" | "entropy", number[]>;

/** Steps of an episode that came together: `size` bytes when unpacked, with the number of the chunk in a file; a step that waits has no reward yet. */
export type Piece = { first: number; steps: number; size: number; unpack: () => Uint8Array | Promise<Uint8Array>; number?: number; isWaiting?: boolean };

export class Replay {
  /** Numbers of the chunks that could not be read. */
  readonly damaged = new Set<number>();
  /** By episode and step. */
  private pieces: Piece[][] = [];
  /** Those that were read; the oldest are first. */
  private kept = new Map<Piece, Promise<Columns | null>>();
  private keptBytes = 0;
  private series: Series[][] = [];

  // prettier-ignore
  constructor(readonly header: Header, blocks: Map<string, Element> = new Map()) {
    let number = 0;
    header.episodes.forEach(({ chunks, steps }, e) => {
      chunks.forEach(([crc, size, unpacked], i) => {
        const name = number++;
        const unpack = () => {
          const packed = fromBase64(blocks.get(String(name))!.textContent!);
          if (packed.length !== size || crc32(packed) !== crc || unpacked > MOST_BYTES) throw new Error("crc");
          return inflate(packed, unpacked);
        };
        const first = i * CHUNK_STEPS;
        this.add(e, { first, steps: Math.min(CHUNK_STEPS, steps - first), size: unpacked, unpack, number: name });
      });
    });
  }

  /** Read the header of a page. Fails with a sentence for the reader. */
  static async open(elements: Iterable<Element>): Promise<Replay> {
    const blocks = new Map(Array.from(elements, (element) => [element.getAttribute("data-block")!, element]));
    const element = blocks.get("header");
    if (!element) throw new Error("This file is not a replay: its header is missing.");
    let header: Header;
    try {
      const packed = fromBase64(element.textContent!);
      if (crc32(packed) !== parseInt(element.getAttribute("data-crc")!, 16)) throw new Error("crc");
      header = JSON.parse(new TextDecoder().decode(await inflate(packed, MOST_BYTES)));
    } catch {
      throw new Error("The header of this file is damaged.");
    }
    if (!VERSIONS.includes(header.version)) throw new Error("The versions of this file and of its page differ.");
    return new Replay(header, blocks);
  }

  /** Add steps to an episode, in place of those that have the same numbers. */
  add(episode: number, piece: Piece): void {
    const schema = this.header.episodes[episode];
    schema.steps = Math.max(schema.steps, piece.first + piece.steps);
    const pieces = (this.pieces[episode] ??= []);
    for (let i = 0; i < piece.steps; i++) pieces[piece.first + i] = piece;
    this.series[episode] ??= Array.from({ length: this.header.sides }, emptySeries);
    for (const series of this.series[episode])
      for (const of of Object.values(series)) while (of.length < schema.steps) of.push(NaN);
  }

  /** Forget steps of an episode, but for those that came anew. */
  drop(episode: number, piece: Piece): void {
    for (let step = piece.first; step < piece.first + piece.steps; step++)
      if (this.pieces[episode][step] === piece) delete this.pieces[episode][step];
  }

  /** Return the pieces of an episode that there are. */
  piecesOf(episode: number): Piece[] {
    return [...new Set(this.pieces[episode])].filter((piece) => piece !== undefined);
  }

  seriesOf(episode: number, side: number): Series {
    return this.series[episode]?.[side] ?? emptySeries();
  }

  /** Return a frame; null if it is in no piece, or in a damaged one. */
  async frame(episode: number, step: number, side: number): Promise<Frame | null> {
    const piece = this.pieces[episode]?.[step];
    const columns = piece && (await this.read(episode, piece));
    return columns ? this.frameOf(columns, piece, episode, step, side) : null;
  }

  /** Read a piece of an episode, unless it is at hand. */
  read(episode: number, piece: Piece): Promise<Columns | null> {
    let found = this.kept.get(piece);
    if (found) this.kept.delete(piece);
    else this.keptBytes += piece.size;
    found ??= this.load(episode, piece);
    this.kept.set(piece, found);
    for (const oldest of this.kept.keys()) {
      if (this.keptBytes <= KEPT_BYTES || oldest === piece) break;
      this.kept.delete(oldest);
      this.keptBytes -= oldest.size;
    }
    return found;
  }

  private async load(episode: number, piece: Piece): Promise<Columns | null> {
    try {
      const columns = decodeChunk(this.header, this.header.episodes[episode], piece.steps, await piece.unpack());
      if (piece.isWaiting) columns.get("reward")!.fill(NaN);
      this.fillSeries(columns, piece, episode);
      return columns;
    } catch {
      if (piece.number !== undefined) this.damaged.add(piece.number);
      return null;
    }
  }

  private fillSeries(columns: Columns, piece: Piece, episode: number): void {
    const { sides, actions } = this.header;
    const probsOf = (a: number) => (actions[a][2].index_to_component ? undefined : columns.get(`probs ${a}`));
    columns.get("reward")!.forEach((reward, f) => {
      const series = this.series[episode][f % sides];
      const step = piece.first + Math.floor(f / sides);
      series.reward[step] = reward;
      series.value[step] = columns.get("value")![f];
      series.besideValue[step] = columns.get("beside value")?.[f] ?? NaN;
      const shares = actions.flatMap((_, a) => {
        const [probs, mask, pairs] = [probsOf(a), columns.get(`mask ${a}`), columns.startsOf(`pairs ${a}`)];
        const actors = columns.startsOf(`actors ${a}`);
        const found: number[] = [];
        for (let row = actors[f]; probs && row < actors[f + 1]; row++) {
          if (columns.get(`taken ${a}`)?.[row] === 0) continue;
          let [legal, entropy] = [0, 0];
          for (let k = pairs[row]; k < pairs[row + 1]; k++) {
            if (!mask || mask[k]) legal++;
            if (probs[k] > 0) entropy -= probs[k] * Math.log(probs[k]);
          }
          if (legal > 1) found.push(entropy / Math.log(legal));
        }
        return found;
      });
      series.entropy[step] = shares.length ? (100 * sum(shares)) / shares.length : NaN;
    });
  }

  private frameOf(columns: Columns, piece: Piece, episode: number, step: number, side: number): Frame {
    const { header } = this;
    const schema = header.episodes[episode];
    const f = (step - piece.first) * header.sides + side;
    const types = allTypes(header);
    const entityAt = (type: number, row: number, place: number, position: number): Entity => {
      const [name, numbers, kinds] = types[type];
      const isGlobal = type === header.types.length;
      const typeName = isGlobal ? "global" : name;
      const hasId = columns.get(`identified ${type}`)?.[f];
      const id = hasId ? columns.get(`identity ${type}`)![columns.startsOf(`identity ${type}`)[f] + place] : null;
      const names = schema.names[side]?.find(([one]) => one === typeName);
      const printed = id === null ? `${typeName} ${place + 1}` : (names?.[2][names[1].indexOf(id)] ?? `${typeName} ${id}`);
      return {
        position,
        type,
        typeName,
        key: isGlobal ? "global" : id === null ? `${type}#${place}` : `${type}id${id}`,
        name: isGlobal ? "global" : printed,
        numbers: row < 0 ? [] : numbers.map((_, j) => columns.get(`feature ${type} ${j}`)![row]),
        labels: row < 0 ? [] : kinds.map(([, labels], k) => labels[columns.get(`kind ${type} ${k}`)?.[row] ?? -1] ?? "?"),
        isVisible: (columns.get(`visible ${type}`)?.[row] ?? 1) !== 0,
        isSeen: !unseenBy(header, type, null).includes("the agent"),
        isGlobal,
      };
    };
    const entities: Entity[] = [];
    header.types.forEach((_, type) => {
      const starts = columns.startsOf(`rows ${type}`);
      for (let row = starts[f]; row < starts[f + 1]; row++)
        entities.push(entityAt(type, row, row - starts[f], entities.length));
    });
    const all = [...entities];
    if (schema.global || header.actions.some(([, kind]) => kind.startsWith("Global"))) {
      const i = header.types.length;
      const row = columns.get(`rows ${i}`)?.[f] ? columns.startsOf(`rows ${i}`)[f] : -1;
      all.push(entityAt(i, row, 0, all.length));
    }
    let decisions: Decision[] | null = null;
    return {
      episode,
      step,
      side,
      entities,
      all,
      get decisions() {
        return (decisions ??= chained(header).flatMap(([a, depth]) => decisionsOf(header, columns, f, a, depth, entities)));
      },
      reward: columns.get("reward")![f],
      value: columns.get("value")![f],
      besideValue: columns.get("beside value")?.[f] ?? NaN,
      attention: columns.get("attention")?.[f] ? attentionOf(columns, f) : null,
      influence: columns.get("influence")?.[f] ? influenceOf(columns, f, schema.influence!) : null,
      picture: columns.get("picture")?.[step - piece.first] ? pictureOf(columns, step - piece.first) : null,
    };
  }
}

const emptySeries = (): Series => ({ reward: [], value: [], besideValue: [], entropy: [] });

/** Return the actions with their depths, each below the one that it depends on. */
function chained({ actions }: Header, after?: string, depth = 0): [action: number, depth: number][] {
  if (depth > actions.length) return [];
  const next = (name: string) => chained({ actions } as Header, name, depth + 1);
  return actions.flatMap(([name, , fields], a) => (fields.after === after ? [[a, depth], ...next(name)] : []));
}

// prettier-ignore
function decisionsOf(header: Header, columns: Columns, f: number, a: number, depth: number, entities: Entity[]): Decision[] {
  const [name, , { index_to_label, index_to_component }] = header.actions[a];
  const starts = columns.startsOf(`actors ${a}`);
  const pairs = columns.startsOf(`pairs ${a}`);
  const [probs, beside, mask, byHand] = ["probs", "beside", "mask", "by hand"].map((what) => columns.get(`${what} ${a}`));
  const [actor, chosen, actee] = ["actor", "chosen", "actee"].map((what) => columns.get(`${what} ${a}`)!);
  const firstActee = columns.has(`actees ${a}`) ? columns.startsOf(`actees ${a}`)[f] : 0;
  return Array.from({ length: starts[f + 1] - starts[f] }, (_, i) => {
    const row = starts[f] + i;
    const isTaken = columns.get(`taken ${a}`)?.[row] !== 0;
    const numbers = (index_to_component ?? []).map((name, index): Component => {
      const k = row * index_to_component!.length + index;
      const [low, high] = ["low", "high"].map((what) => columns.get(`${what} ${a}`)![k]);
      const shownOf = (of: typeof probs) => Array.from(of?.slice(NUMBERS_SHOWN * k, NUMBERS_SHOWN * (k + 1)) ?? []);
      return { name, low, high, chosen: isTaken ? chosen[k] : NaN, shown: shownOf(probs), beside: shownOf(beside) };
    });
    const choices = Array.from({ length: index_to_component ? 0 : pairs[row + 1] - pairs[row] }, (_, index): Choice => {
      const k = pairs[row] + index;
      const target = index_to_label ? null : actee[firstActee + index];
      return {
        label: target === null ? index_to_label![index] : entities[target].name,
        target,
        probability: probs?.[k] ?? NaN,
        beside: beside?.[k] ?? NaN,
        isAllowed: mask?.[k] !== 0,
        isChosen: isTaken && chosen[row] === index,
      };
    });
    return { action: a, name, actor: actor[row], depth, isTaken, byHand: byHand?.[row] === 1, numbers, choices };
  });
}

function attentionOf(columns: Columns, f: number): Attention {
  const i = columns.startsOf("attention")[f];
  const [layers, heads, size] = ["layers", "heads", "size"].map((name) => columns.get(`attention ${name}`)![i]);
  const [start, end] = columns.startsOf("attention weight").subarray(i, i + 2);
  const rows = layers * heads * size;
  const kept = (end - start) / rows;
  const weights = new Float64Array(rows * size);
  for (let k = 0; k < end - start; k++) {
    const column = columns.get("attention column")?.[start + k] ?? k % kept;
    weights[Math.floor(k / kept) * size + column] = columns.get("attention weight")![start + k];
  }
  return { layers, heads, size, weights };
}

/** Return the weight of attention from a row to a column, of a head or (-1) their mean. */
export function attentionWeight(of: Attention, layer: number, head: number, from: number, to: number): number {
  let [total, count] = [0, 0];
  for (let l = 0; l < of.layers; l++)
    for (let h = 0; h < of.heads; h++) {
      if ((layer >= 0 && l !== layer) || (head >= 0 && h !== head)) continue;
      total += of.weights[((l * of.heads + h) * of.size + from) * of.size + to];
      count++;
    }
  return total / count;
}

function influenceOf(columns: Columns, f: number, actions: number[]): Influence {
  const i = columns.startsOf("influence")[f];
  const range = columns.startsOf("influence size").subarray(i, i + 2);
  const part = (name: string, from: number, to: number) => Array.from(columns.get(name)!.subarray(from, to));
  const entities = part("influence entity", range[0], range[1]);
  const choicesOf = (a: number) => {
    const [start, end] = columns.startsOf(`influence ${a}`).subarray(i, i + 2);
    const actors = (end - start) / entities.length;
    return entities.map((_, e) => part(`influence ${a}`, start + e * actors, start + (e + 1) * actors));
  };
  return {
    entities,
    values: part("influence value", range[0], range[1]),
    choices: new Map(actions.map((a) => [a, choicesOf(a)])),
  };
}

function pictureOf(columns: Columns, step: number): Uint8Array<ArrayBuffer> {
  const i = columns.startsOf("picture")[step];
  const [start, end] = columns.startsOf("picture size").subarray(i, i + 2);
  return new Uint8Array((columns.get("picture byte") as Uint8Array).slice(start, end));
}

/** Of attention and influence the strongest entities are shown, at most this many. */
export const MOST_RANKED = 10;

/** Return the indices of the largest weights, the largest first. */
export function strongest(weights: number[]): number[] {
  return [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, MOST_RANKED);
}

/** Return the discounted rewards from each step on; nan from where one of them is not known. */
export function returnsToGo(rewards: ArrayLike<number>, discount: number): Float64Array {
  const returns = new Float64Array(rewards.length);
  let next = 0;
  for (let t = rewards.length - 1; t >= 0; t--) returns[t] = next = rewards[t] + discount * next;
  return returns;
}

/** Return the sum of the rewards up to each step. */
export function returnsSoFar(rewards: ArrayLike<number>): Float64Array {
  let total = 0;
  return Float64Array.from(rewards, (reward) => (total += reward));
}
