import assert from "node:assert/strict";
import test from "node:test";
import { percent, shown } from "../src/dom.js";
import { extentOf, fitted, nearest, outline, panned, toPixel, zoomed } from "../src/geometry.js";
import { isRunning, stepText } from "../src/header.js";
import { attentionWeight, returnsSoFar, returnsToGo, strongest } from "../src/model.js";
import { niceStep } from "../src/scene.js";
import { SHAPES, colorOf, headingOf, placeOf, viewOf } from "../src/view.js";

const BOX = { x: 0, y: 0, width: 200, height: 100 };

test("an extent is shown whole, up or down", () => {
  const extent = extentOf([[0, 0], [10, 4]])!; // prettier-ignore
  const camera = fitted(extent, BOX, false, 10);
  assert.equal(camera.scale, 18);
  const [left, low] = toPixel(camera, [0, 0]);
  const [right, high] = toPixel(camera, [10, 4]);
  assert.deepEqual([left, right], [10, 190]);
  assert.ok(low > high && low <= 90 && high >= 10);
  assert.ok(toPixel(fitted(extent, BOX, true, 10), [0, 4])[1] > toPixel(fitted(extent, BOX, true, 10), [0, 0])[1]);
  assert.ok(Number.isFinite(fitted(extentOf([[3, 3]])!, BOX, false).scale)); // one place alone
});

test("zoom keeps the place under the pointer, pan moves it", () => {
  const camera = fitted([0, 10, 0, 10], BOX, false);
  const pixel = toPixel(camera, [2, 3]);
  const rounded = (point: number[]) => point.map((value) => value.toFixed(6));
  assert.deepEqual(rounded(toPixel(zoomed(camera, 3, pixel), [2, 3])), rounded(pixel));
  assert.deepEqual(toPixel(panned(camera, 5, -7), [2, 3]), [pixel[0] + 5, pixel[1] - 7]);
});

test("the nearest entity within reach is chosen", () => {
  assert.equal(nearest([[0, 0], null, [10, 0]], [8, 1], 5), 2); // prettier-ignore
  assert.equal(nearest([[0, 0]], [8, 1], 5), -1);
});

test("shapes have a radius of about 1", () => {
  for (const shape of SHAPES)
    for (const [x, y] of outline(shape)) assert.ok(Math.hypot(x, y) <= 1.3, shape);
});

test("steps of the axes are 1, 2 or 5", () => {
  assert.deepEqual([0.03, 1, 1.1, 7, 2100].map(niceStep), [0.05, 1, 2, 10, 5000]);
});

test("returns are sums, discounted from a step on", () => {
  const rewards = Float64Array.of(1, 2, 4);
  assert.deepEqual([...returnsToGo(rewards, 0.5)], [3, 4, 4]);
  assert.deepEqual([...returnsSoFar(rewards)], [1, 3, 7]);
  assert.deepEqual([...returnsToGo(Float64Array.of(1, NaN, 4), 1)], [NaN, NaN, 4]);
});

test("attention is that of a head, or the mean of heads and layers", () => {
  const of = { layers: 2, heads: 1, size: 2, weights: Float64Array.of(0.1, 0.9, 0.5, 0.5, 0.3, 0.7, 0.2, 0.8) };
  assert.equal(attentionWeight(of, 0, 0, 0, 1), 0.9);
  assert.equal(attentionWeight(of, -1, -1, 0, 1), 0.8);
});

test("the ten strongest weights are ranked", () => {
  const weights = Array.from({ length: 30 }, (_, i) => (7 * i) % 30);
  assert.deepEqual(strongest(weights).map((i) => weights[i]), [29, 28, 27, 26, 25, 24, 23, 22, 21, 20]); // prettier-ignore
  assert.deepEqual(strongest([0.1, 0.9]), [1, 0]);
});

test("an episode runs until the server says that it has ended", () => {
  const about = "step 1";
  const schemas = [{ about }, { about, terminated: true }, { about, truncated: true }, { truncated: true }, {}];
  assert.deepEqual(schemas.map((schema) => isRunning(schema as never)), [true, false, false, false, false]); // prettier-ignore
});

test("numbers are short, and those that are not finite are said", () => {
  assert.deepEqual([NaN, Infinity, -Infinity, -0.5, 1 / 3, 1e-9].map(shown), ["nan", "∞", "−∞", "−0.5", "0.33333", "1.00e−9"]);
  assert.deepEqual([0, 0.0001, 0.5, NaN].map(percent), ["0.0%", "<0.1%", "50.0%", "nan"]);
});

const header = (types: [string, string[]][], view: unknown = null) =>
  ({ types: types.map(([name, numbers]) => [name, numbers, []]), global: [["x_pos", "y_pos"], []], view }) as never;

test("positions are found by name, and given by a view", () => {
  const view = viewOf(header([["A", ["hp", "x", "y"]], ["B", ["row", "column"]], ["C", ["hp"]], ["D", ["x", "y", "z"]]])); // prettier-ignore
  assert.deepEqual(view.types.map(({ position }) => position), [[1, 2], [1, 0], [], [0, 1, 2], [0, 1]]); // prettier-ignore
  assert.equal(view.isDown, true); // rows grow downwards
  const own = { position: ["y", "hp"], heading: ["x", "y"], shape: "star", colour: "#ffffff", size: "hp", label: ["hp"] };
  const given = { y_down: true, bounds: [[0, 9], [0, 9]], entities: { A: own } }; // prettier-ignore
  const other = viewOf(header([["A", ["hp", "x", "y"]]], given));
  const { position, shape, color, heading } = other.types[0];
  assert.deepEqual([position, SHAPES[shape], color, heading], [[2, 0], "star", "#ffffff", [1, 2]]);
  assert.deepEqual([other.types[0].size, other.types[0].label], [{ number: 0 }, [{ number: 0 }]]);
  assert.deepEqual([other.isDown, other.bounds], [true, [[0, 9], [0, 9]]]); // prettier-ignore
});

test("one coordinate alone is on its axis", () => {
  const view = viewOf(header([["Ball", ["x", "y"]], ["Bat", ["hp", "y"]], ["Gate", ["x", "hp"]]])); // prettier-ignore
  const places = [0, 1, 2].map((type) => placeOf(view, { type, numbers: [3, 5] } as never));
  assert.deepEqual([places, view.axes], [[[3, 5], [0, 5], [3]], ["x", "y"]]); // prettier-ignore

  // Where no type has two coordinates, the one is on the first axis.
  const line = viewOf({ types: [["Bat", ["y"], []]], global: [[], []], view: null } as never);
  assert.deepEqual([placeOf(line, { type: 0, numbers: [5] } as never), line.axes], [[5], ["y"]]); // prettier-ignore
});

test("headings are angles or directions, colours may follow a feature", () => {
  const entity = { numbers: [0, -1, 2], labels: ["b"] } as never;
  const headings = [[], [2], [0, 1]].map((heading) => headingOf({ heading } as never, entity));
  assert.deepEqual(headings, [NaN, 2, -Math.PI / 2]);
  const colors = ["#00ff00", 3, { number: 2 }, { kind: 0, labels: ["a", "b"] }];
  assert.deepEqual(colors.map((color) => colorOf({ color } as never, entity)), ["#00ff00", 3, 2, 1]); // prettier-ignore
});

test("a view that does not fit is left out", () => {
  for (const given of ["x", 5, [], { bounds: "no", entities: { A: { shape: {}, heading: 5, label: 3, colour: "red" } } }]) {
    const view = viewOf(header([["A", ["x", "y"]]], given));
    assert.deepEqual([view.types[0].position, view.bounds], [[0, 1], null]); // prettier-ignore
  }
});

test("an entity whose place is not finite has none", () => {
  const view = viewOf(header([["A", ["x", "y"]]]));
  const at = (numbers: number[]) => placeOf(view, { type: 0, numbers } as never);
  assert.deepEqual([at([1, 2]), at([1, NaN]), at([Infinity, 2])], [[1, 2], null, null]); // prettier-ignore
});

test("steps keep their numbers where some are left out", () => {
  const texts = (schema: object) => [0, 2].map((step) => stepText(schema as never, step));
  assert.deepEqual(texts({ steps: 3 }), ["step 0 of 2", "step 2 of 2"]);
  assert.deepEqual(texts({ steps: 3, numbers: [4, 5, 40] }), ["step 4 (1 of 3 kept)", "step 40 (3 of 3 kept)"]);
  assert.equal(stepText({ steps: 0 } as never, 0), "step 0 of 0");
});
