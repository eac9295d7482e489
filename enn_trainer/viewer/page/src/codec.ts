/** Blocks and chunks of a replay, as `replay_format.py` defines them. */

export type NamedKinds = [name: string, labels: string[]][];

/** An episode's entry in the header. */
export interface Schema {
  steps: number;
  terminated: boolean;
  truncated: boolean;
  global: boolean;
  identity: number[];
  kinds: [type: number, bytes: number][];
  visible: number[];
  masks: number[];
  probs: number[];
  beside: number[] | null;
  by_hand: number[] | null;
  attention: boolean;
  influence: number[] | null;
  pictures: boolean;
  names: [type: string, numbers: number[], texts: string[]][][];
  chunks: [crc: number, packed: number, unpacked: number][];
  /** The number of each step in the episode, if some steps are left out. */
  numbers?: number[];
  /** Of a running world: who plays it. */
  about?: string;
}

export interface Header {
  version: number;
  title: string;
  about: [string, string][];
  sides: number;
  discount: number;
  view: unknown;
  types: [name: string, numbers: string[], kinds: NamedKinds][];
  global: [numbers: string[], kinds: NamedKinds];
  actions: [name: string, kind: string, fields: { index_to_label?: string[]; index_to_component?: string[]; after?: string }][];
  moments: [kind: string, episode: number, step: number, side: number, entity: number | null, text: string][];
  attention: "whole" | "strongest";
  rounding: [column: string, bits: number, low: number, high: number][];
  errors: [string, number][];
  notes: string[];
  /** Types, or columns of them (numbers, then kinds), that an agent does not see. */
  unseen?: Partial<Record<"agent" | "beside", [type: number, columns: number[] | null][]>>;
  episodes: Schema[];
}

export type Numbers = Float32Array | Uint32Array | Uint16Array | Uint8Array;
type Dtype = "f4" | "u4" | "u2" | "u1" | "?";

/** The columns of a chunk by name. */
export class Columns extends Map<string, Numbers> {
  private starts = new Map<string, Float64Array>();

  /** Return where the rows of each frame (or of each row of another column) begin, by a column of their numbers. */
  startsOf(name: string, lengths: ArrayLike<number> = this.get(name)!): Float64Array {
    const found = this.starts.get(name) ?? startsOf(lengths);
    this.starts.set(name, found);
    return found;
  }
}

/** Those with numbers or dependent actions are 2. */
export const VERSIONS = [1, 2];
/** Columns of each number: mean, deviation and the ends of its 90% range. */
export const NUMBERS_SHOWN = 4;
export const CHUNK_STEPS = 64;
export const STRONGEST = 4;
const WIDTHS = { f4: 4, u4: 4, u2: 2, u1: 1, "?": 1 };

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, value) => {
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

export function crc32(bytes: Uint8Array): number {
  let crc = -1;
  for (const byte of bytes) crc = CRC_TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Return the data of a deflated block; fails if it is damaged or longer than `most` bytes. */
export async function inflate(packed: Uint8Array<ArrayBuffer>, most: number): Promise<Uint8Array> {
  const reader = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > most) throw new Error("larger than the header says");
    parts.push(value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** Return the last row before each one with the same key, -1 where there is none. */
export function previousRows(keys: Float64Array): Int32Array {
  const last = new Map<number, number>();
  const previous = new Int32Array(keys.length);
  for (let i = 0; i < keys.length; i++) {
    previous[i] = last.get(keys[i]) ?? -1;
    last.set(keys[i], i);
  }
  return previous;
}

export function sum(numbers: ArrayLike<number>): number {
  let total = 0;
  for (let i = 0; i < numbers.length; i++) total += numbers[i];
  return total;
}

/** Return where the rows of each frame begin, and behind the last one. */
export function startsOf(lengths: ArrayLike<number>): Float64Array {
  let end = 0;
  return Float64Array.from({ length: lengths.length + 1 }, (_, i) => (i ? (end += lengths[i - 1]) : 0));
}

/** Return name, numbers and kinds of each type; what is global is the last one. */
export function allTypes(header: Header): Header["types"] {
  return [...header.types, ["__global__", ...header.global]];
}

/** Return the columns of a chunk by name. Fails if its bytes contradict themselves. */
export function decodeChunk(header: Header, schema: Schema, steps: number, raw: Uint8Array): Columns {
  const { sides } = header;
  const frames = steps * sides;
  const columns = new Columns();
  const rounding = new Map(header.rounding.map(([name, ...how]) => [name, how]));
  const bytes = new DataView(raw.buffer, raw.byteOffset, raw.length);
  let at = 0;

  function read(name: string, dtype: Dtype, count: number, previous: Int32Array | null): Numbers {
    const size = bytes.getUint32(at, true);
    const data = raw.subarray(at + 4, at + 4 + size);
    const how = rounding.get(name);
    const coded: Dtype = !how ? dtype : how[0] === 16 ? "u2" : "u1";
    const expected = dtype === "?" ? Math.ceil(count / 8) : count * WIDTHS[coded];
    if (size !== expected || data.length !== size) throw new Error(`${name}: another size`);
    const bits = dtype === "?" ? flags(data, count, previous) : integers(data, count, WIDTHS[coded], previous);
    const values = how ? unrounded(bits, ...how) : typed(bits, dtype);
    columns.set(name, values);
    at += 4 + size;
    return values;
  }
  /** Read how many rows each frame has; return where they begin, and the frame of each. */
  function readCounts(name: string): [starts: Float64Array, frame: Float64Array] {
    read(name, "u4", frames, bySide);
    const starts = columns.startsOf(name);
    if (starts[frames] > 65536 + 64 * raw.length) throw new Error(name);
    const frame = new Float64Array(starts[frames]);
    for (let f = 0; f < frames; f++) frame.fill(f, starts[f], starts[f + 1]);
    return [starts, frame];
  }
  /** Read positions in lists of frames, each of which follows the same place of an earlier list. */
  function readPositions(name: string, starts: Float64Array, frame: Float64Array, more: number): Numbers {
    const before = previousRows(frame.map((f, row) => (row - starts[f]) * sides + (f % sides)));
    const positions = read(name, "u4", frame.length, before);
    check(positions, (row) => keyStarts[frame[row] + 1] - keyStarts[frame[row]] - 1 + more);
    return positions;
  }
  function check(positions: Numbers, limit: (row: number) => number): void {
    for (let i = 0; i < positions.length; i++) if (positions[i] >= limit(i)) throw new Error("positions");
  }

  const bySide = previousRows(Float64Array.from({ length: frames }, (_, f) => f % sides));
  read("reward", "f4", frames, bySide);
  read("value", "f4", frames, bySide);
  if (schema.beside) read("beside value", "f4", frames, bySide);

  // Rows of each type. Keys tell entities apart.
  const kindBytes = new Map(schema.kinds);
  const types = allTypes(header).slice(0, schema.global ? undefined : -1);
  const rows = types.map(([, numbers, kinds], i) => {
    const [starts, frame] = readCounts(`rows ${i}`);
    const keyOf = (number: number, f: number): number => ((number * (header.types.length + 1) + i) * sides + (f % sides)) * 2;
    const keys = frame.map((f, row) => keyOf(row - starts[f], f) + 1);
    if (schema.identity.includes(i)) {
      const known = read(`identified ${i}`, "?", frames, bySide);
      columns.startsOf(`identity ${i}`, Array.from(known, (has, f) => has && starts[f + 1] - starts[f]));
      const withId = [...frame.keys()].filter((row) => known[frame[row]]);
      const identity = read(`identity ${i}`, "u4", withId.length, previousRows(Float64Array.from(withId, (row) => keys[row])));
      withId.forEach((row, k) => (keys[row] = keyOf(identity[k], frame[row])));
    }
    const before = previousRows(keys);
    numbers.forEach((_, j) => read(`feature ${i} ${j}`, "f4", keys.length, before));
    const width = kindBytes.get(i);
    if (width) kinds.forEach((_, k) => read(`kind ${i} ${k}`, width === 1 ? "u1" : "u2", keys.length, before));
    if (schema.visible.includes(i)) read(`visible ${i}`, "?", keys.length, before);
    return { starts, keys };
  });

  // Keys in the order of entities of each frame, that of the global actor behind them.
  const keyAt: number[] = [];
  const keyStarts = [0];
  for (let f = 0; f < frames; f++) {
    for (const { starts, keys } of rows.slice(0, header.types.length))
      for (let row = starts[f]; row < starts[f + 1]; row++) keyAt.push(keys[row]);
    keyStarts.push(keyAt.push(-1 - (f % sides)));
  }

  // Actions.
  header.actions.forEach(([, , { index_to_label, index_to_component, after }], a) => {
    const [starts, frame] = readCounts(`actors ${a}`);
    const actors = readPositions(`actor ${a}`, starts, frame, 1);
    const before = previousRows(frame.map((f, row) => keyAt[keyStarts[f] + actors[row]]));
    const names = index_to_label ?? index_to_component;
    const widths = new Float64Array(frame.length).fill(names?.length ?? 0);
    if (!names) {
      const [acteeStarts, acteeFrame] = readCounts(`actees ${a}`);
      readPositions(`actee ${a}`, acteeStarts, acteeFrame, 0);
      frame.forEach((f, row) => (widths[row] = acteeStarts[f + 1] - acteeStarts[f]));
    }
    if (after) read(`taken ${a}`, "?", widths.length, before);
    if (!index_to_component) check(read(`chosen ${a}`, "u4", widths.length, before), (row) => widths[row]);
    if (schema.by_hand?.includes(a)) read(`by hand ${a}`, "?", widths.length, before);
    /** Read numbers of each row, which continue those of its last row of that many. */
    const readWide = (wanted: [string, Dtype][], widths: Float64Array, starts: Float64Array) => {
      const pairs = starts[widths.length];
      if (pairs > 8 * raw.length) throw new Error("choices");
      const pairsBefore = new Int32Array(pairs).fill(-1);
      widths.forEach((width, row) => {
        const from = before[row];
        if (from < 0 || widths[from] !== width) return;
        for (let k = 0; k < width; k++) pairsBefore[starts[row] + k] = starts[from] + k;
      });
      for (const [name, dtype] of wanted) read(`${name} ${a}`, dtype, pairs, pairsBefore);
    };
    if (index_to_component) {
      readWide([["chosen", "f4"], ["low", "f4"], ["high", "f4"]], widths, startsOf(widths)); // prettier-ignore
      widths.forEach((width, row) => (widths[row] = NUMBERS_SHOWN * width));
    }
    const pairStarts = columns.startsOf(`pairs ${a}`, widths);
    const columnsOfPairs = [["mask", "?", schema.masks], ["probs", "f4", schema.probs], ["beside", "f4", schema.beside]] as const; // prettier-ignore
    const present = columnsOfPairs.filter(([, , actions]) => actions?.includes(a));
    if (present.length) readWide(present.map(([name, dtype]) => [name, dtype]), widths, pairStarts); // prettier-ignore
  });

  // Explanations and pictures of some frames.
  if (schema.attention) {
    const count = sum(read("attention", "?", frames, bySide));
    const [layers, heads, size] = ["layers", "heads", "size"].map((name) => read(`attention ${name}`, "u4", count, null));
    const isWhole = header.attention === "whole";
    const lengths = Array.from(size, (n, i) => layers[i] * heads[i] * n * (isWhole ? n : Math.min(n, STRONGEST)));
    const weights = columns.startsOf("attention weight", lengths)[count];
    if (!isWhole) read("attention column", "u4", weights, null);
    read("attention weight", "f4", weights, null);
  }
  if (schema.influence) {
    const shown = read("influence", "?", frames, bySide);
    const at = [...shown.keys()].filter((f) => shown[f]);
    const size = read("influence size", "u4", at.length, null);
    read("influence entity", "u4", sum(size), null);
    read("influence value", "f4", sum(size), null);
    for (const a of schema.influence) {
      const starts = columns.startsOf(`influence ${a}`, at.map((f, i) => size[i] * columns.get(`actors ${a}`)![f]));
      read(`influence ${a}`, "f4", starts[at.length], null);
    }
  }
  if (schema.pictures) {
    const count = sum(read("picture", "?", steps, null));
    read("picture byte", "u1", sum(read("picture size", "u4", count, null)), null);
  }
  if (at !== raw.length) throw new Error("more bytes than columns");
  return columns;
}

function flags(data: Uint8Array, count: number, previous: Int32Array | null): Uint32Array {
  const bits = new Uint32Array(count);
  for (let i = 0; i < count; i++) {
    bits[i] = (data[i >> 3] >> (7 - (i & 7))) & 1;
    if (previous && previous[i] >= 0) bits[i] ^= bits[previous[i]];
  }
  return bits;
}

function integers(data: Uint8Array, count: number, width: number, previous: Int32Array | null): Uint32Array {
  const bits = new Uint32Array(count);
  for (let plane = 0; plane < width; plane++)
    for (let i = 0; i < count; i++) bits[i] |= data[plane * count + i] << (8 * plane);
  if (!previous) return bits;
  const all = width === 4 ? -1 : (1 << (8 * width)) - 1;
  for (let i = 0; i < count; i++) {
    const difference = (bits[i] >>> 1) ^ -(bits[i] & 1); // from zigzag order
    bits[i] = (difference + (previous[i] >= 0 ? bits[previous[i]] : 0)) & all;
  }
  return bits;
}

function typed(bits: Uint32Array, dtype: Dtype): Numbers {
  if (dtype === "f4") return new Float32Array(bits.buffer);
  if (dtype === "u4") return bits;
  return dtype === "u2" ? Uint16Array.from(bits) : Uint8Array.from(bits);
}

function unrounded(codes: Uint32Array, bits: number, low: number, high: number): Float32Array {
  const top = 2 ** bits - 4;
  const special = [NaN, Infinity, -Infinity];
  return Float32Array.from(codes, (code) => (code > top ? special[code - top - 1] : low + code * ((high - low) / top)));
}
