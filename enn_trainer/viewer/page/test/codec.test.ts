import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { CHUNK_STEPS, crc32, decodeChunk, fromBase64, inflate, previousRows, startsOf } from "../src/codec.js";
import type { Header } from "../src/codec.js";

test("crc32 is that of zlib", () => {
  assert.equal(crc32(new TextEncoder().encode("123456789")), 0xcbf43926);
  assert.equal(crc32(new Uint8Array()), 0);
});

test("the previous row is the last one of the same key", () => {
  assert.deepEqual([...previousRows(Float64Array.of(7, 8, 7, 7, 9, 8))], [-1, -1, 0, 2, -1, 1]);
  assert.deepEqual([...startsOf([2, 0, 3])], [0, 2, 2, 5]);
});

test("a block that is longer than it says is given up", async () => {
  const packed = fromBase64("eJxLTEoGAAJNASc="); // "abc"
  assert.equal(new TextDecoder().decode(await inflate(packed, 3)), "abc");
  await assert.rejects(inflate(packed, 2), /larger/);
  await assert.rejects(inflate(packed.slice(0, 6), 3));
});

/** A file that Python wrote: blocks of a page, and the bytes of the columns that it packed. */
interface Written {
  blocks: Record<string, string>;
  columns: Record<string, string>[];
}

test("chunks come out as Python put them in, to the bit", async () => {
  const path = process.env.REPLAY_COLUMNS;
  if (!path) return; // by hand, without Python
  const written = JSON.parse(readFileSync(path, "utf8")) as Written[];
  assert.ok(written.length > 0);
  for (const { blocks, columns } of written) {
    const unpack = async (name: string) => inflate(fromBase64(blocks[name]), 1e9);
    const header = JSON.parse(new TextDecoder().decode(await unpack("header"))) as Header;
    let number = 0;
    for (const schema of header.episodes) {
      for (let first = 0; first < schema.steps; first += CHUNK_STEPS) {
        const steps = Math.min(CHUNK_STEPS, schema.steps - first);
        const found = decodeChunk(header, schema, steps, await unpack(String(number)));
        const expected = columns[number++];
        assert.deepEqual([...found.keys()], Object.keys(expected));
        for (const [name, values] of found) {
          assert.deepEqual(new Uint8Array(values.buffer), fromBase64(expected[name]), name);
        }
      }
    }
  }
});

test("bytes that contradict themselves are an error", () => {
  const schema = { steps: 1, kinds: [], identity: [], visible: [], masks: [], probs: [], beside: null };
  const header = { sides: 1, types: [], actions: [], rounding: [], global: [[], []] };
  const decode = (raw: Uint8Array) => decodeChunk(header as never, schema as never, 1, raw);
  const good = Uint8Array.of(4, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0);
  assert.deepEqual([...decode(good).keys()], ["reward", "value"]);
  assert.throws(() => decode(good.subarray(0, 12)));
  assert.throws(() => decode(Uint8Array.of(...good, 0)), /more bytes/);
  assert.throws(() => decode(Uint8Array.of(8, ...good.subarray(1))), /another size/);
});
