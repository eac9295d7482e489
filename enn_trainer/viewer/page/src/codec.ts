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
  actions: [name: string, kind: string, fields: { index_to_label?: string[] }][];
  moments: [kind: string, episode: number, step: number, side: number, entity: number | null, text: string][];
  attention: "whole" | "strongest";
  rounding: [column: string, bits: number, low: number, high: number][];
  errors: [string, number][];
  notes: string[];
  episodes: Schema[];
}

export type Numbers = Float32Array | Uint32Array | Uint16Array | Uint8Array;
export type Columns = Map<string, Numbers>;
type Dtype = "f4" | "u4" | "u2" | "u1" | "?";

export const VERSION = 1;
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
  const parts: Uint8Array[] = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > most) throw new Error("larger than the header says");
    parts.push(value);
  }
  const data = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    data.set(part, at);
    at += part.length;
  }
  return data;
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
  const starts = new Float64Array(lengths.length + 1);
  for (let i = 0; i < lengths.length; i++) starts[i + 1] = starts[i] + lengths[i];
  return starts;
}

/** Return the columns of a chunk by name. Fails if its bytes contradict themselves. */
export function decodeChunk(header: Header, schema: Schema, steps: number, raw: Uint8Array): Columns {
  const { sides } = header;
  const frames = steps * sides;
  const columns: Columns = new Map();
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
    const values = how ? unrounded(bits, how[0], how[1], how[2]) : typed(bits, dtype);
    columns.set(name, values);
    at += 4 + size;
    return values;
  }
  function check(positions: Numbers, limit: (row: number) => number): void {
    for (let i = 0; i < positions.length; i++) if (positions[i] >= limit(i)) throw new Error("positions");
  }
  /** Keys of the places in a frame, (rows,). */
  function places(starts: Float64Array, key: (place: number, side: number, frame: number) => number): Float64Array {
    const keys = new Float64Array(starts[frames]);
    for (let f = 0; f < frames; f++)
      for (let row = starts[f]; row < starts[f + 1]; row++) keys[row] = key(row - starts[f], f % sides, f);
    return keys;
  }
  const byPlace = (starts: Float64Array) => previousRows(places(starts, (place, side) => place * sides + side));

  const bySide = previousRows(Float64Array.from({ length: frames }, (_, f) => f % sides));
  read("reward", "f4", frames, bySide);
  read("value", "f4", frames, bySide);
  if (schema.beside) read("beside value", "f4", frames, bySide);

  // Rows of each type. Keys tell entities apart.
  const kindBytes = new Map(schema.kinds);
  const types: [number, NamedKinds][] = header.types.map(([, numbers, kinds]) => [numbers.length, kinds]);
  const numTypes = types.length + 1;
  if (schema.global) types.push([header.global[0].length, header.global[1]]);
  const entityStarts: Float64Array[] = [];
  const entityKeys: Float64Array[] = [];
  types.forEach(([numFeatures, kinds], i) => {
    const starts = startsOf(read(`rows ${i}`, "u4", frames, bySide));
    if (starts[frames] > 65536 + 64 * raw.length) throw new Error("rows");
    const rows = starts[frames];
    const keys = places(starts, (place, side) => ((place * numTypes + i) * sides + side) * 2 + 1);
    if (schema.identity.includes(i)) {
      const known = read(`identified ${i}`, "?", frames, bySide);
      const withId: number[] = [];
      for (let f = 0; f < frames; f++)
        if (known[f]) for (let row = starts[f]; row < starts[f + 1]; row++) withId.push(row);
      const before = previousRows(Float64Array.from(withId, (row) => keys[row]));
      const identity = read(`identity ${i}`, "u4", withId.length, before);
      const sideOf = places(starts, (_, side) => side);
      withId.forEach((row, k) => (keys[row] = (identity[k] * sides + sideOf[row]) * 2));
    }
    const before = previousRows(keys);
    for (let j = 0; j < numFeatures; j++) read(`feature ${i} ${j}`, "f4", rows, before);
    const width = kindBytes.get(i);
    if (width) kinds.forEach((_, k) => read(`kind ${i} ${k}`, width === 1 ? "u1" : "u2", rows, before));
    if (schema.visible.includes(i)) read(`visible ${i}`, "?", rows, before);
    if (i < header.types.length) {
      entityStarts.push(starts);
      entityKeys.push(keys);
    }
  });

  // Keys in the order of entities of each frame, that of the global actor behind them.
  const numEntities = new Float64Array(frames);
  for (const starts of entityStarts) for (let f = 0; f < frames; f++) numEntities[f] += starts[f + 1] - starts[f];
  const frameStarts = startsOf(numEntities.map((count) => count + 1));
  const keyAt = new Float64Array(frameStarts[frames]);
  for (let f = 0; f < frames; f++) {
    let place = frameStarts[f];
    entityStarts.forEach((starts, i) => {
      for (let row = starts[f]; row < starts[f + 1]; row++) keyAt[place++] = entityKeys[i][row];
    });
    keyAt[place] = -1 - (f % sides);
  }

  // Actions.
  const numActors: Numbers[] = [];
  header.actions.forEach(([, , { index_to_label }], a) => {
    const counts = read(`actors ${a}`, "u4", frames, bySide);
    numActors.push(counts);
    const starts = startsOf(counts);
    const total = starts[frames];
    if (total > 65536 + 64 * raw.length) throw new Error("actors");
    const frame = places(starts, (_, __, f) => f);
    const actors = read(`actor ${a}`, "u4", total, byPlace(starts));
    check(actors, (row) => numEntities[frame[row]] + 1);
    const before = previousRows(Float64Array.from(frame, (f, row) => keyAt[frameStarts[f] + actors[row]]));
    let widths: Float64Array;
    if (index_to_label) {
      widths = new Float64Array(total).fill(index_to_label.length);
    } else {
      const actees = read(`actees ${a}`, "u4", frames, bySide);
      const acteeStarts = startsOf(actees);
      if (acteeStarts[frames] > 65536 + 64 * raw.length) throw new Error("actees");
      const positions = read(`actee ${a}`, "u4", acteeStarts[frames], byPlace(acteeStarts));
      const acteeFrame = places(acteeStarts, (_, __, f) => f);
      check(positions, (row) => numEntities[acteeFrame[row]]);
      widths = Float64Array.from(frame, (f) => actees[f]);
    }
    const chosen = read(`chosen ${a}`, "u4", total, before);
    check(chosen, (row) => widths[row]);
    if (schema.by_hand?.includes(a)) read(`by hand ${a}`, "?", total, before);
    const hasPairs = [schema.masks, schema.probs, schema.beside].some((those) => those?.includes(a));
    if (!hasPairs) return;
    const pairStarts = startsOf(widths);
    if (pairStarts[total] > 8 * raw.length) throw new Error("choices");
    const pairsBefore = new Int32Array(pairStarts[total]).fill(-1);
    for (let row = 0; row < total; row++) {
      const from = before[row];
      if (from < 0 || widths[from] !== widths[row]) continue;
      for (let k = 0; k < widths[row]; k++) pairsBefore[pairStarts[row] + k] = pairStarts[from] + k;
    }
    if (schema.masks.includes(a)) read(`mask ${a}`, "?", pairStarts[total], pairsBefore);
    if (schema.probs.includes(a)) read(`probs ${a}`, "f4", pairStarts[total], pairsBefore);
    if (schema.beside?.includes(a)) read(`beside ${a}`, "f4", pairStarts[total], pairsBefore);
  });

  // Explanations and pictures of some frames.
  if (schema.attention) {
    const count = sum(read("attention", "?", frames, bySide));
    const [layers, heads, size] = ["layers", "heads", "size"].map((name) => read(`attention ${name}`, "u4", count, null));
    let weights = 0;
    for (let i = 0; i < count; i++) {
      const kept = header.attention === "whole" ? size[i] : Math.min(size[i], STRONGEST);
      weights += layers[i] * heads[i] * size[i] * kept;
    }
    if (header.attention !== "whole") read("attention column", "u4", weights, null);
    read("attention weight", "f4", weights, null);
  }
  if (schema.influence) {
    const shown = read("influence", "?", frames, bySide);
    const at = Array.from(shown.keys()).filter((f) => shown[f]);
    const size = read("influence size", "u4", at.length, null);
    read("influence entity", "u4", sum(size), null);
    read("influence value", "f4", sum(size), null);
    for (const a of schema.influence)
      read(`influence ${a}`, "f4", sum(at.map((f, i) => size[i] * numActors[a][f])), null);
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
