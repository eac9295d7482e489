import assert from "node:assert/strict";
import test from "node:test";
import type { Header, Schema } from "../src/codec.js";
import { compared, isIn, openDecision, withAdvice } from "../src/hand.js";
import { Live, type Message } from "../src/live.js";
import { unseenBy } from "../src/view.js";
import { changed, moved, withChange, type Change } from "../src/what_if.js";

/** The bytes of a column of one step: its length, and planes of zigzag differences to nothing. */
function column(values: number[], isFloat = false): number[] {
  const bits = isFloat ? [...new Uint32Array(Float32Array.from(values).buffer)] : values;
  const zigzag = bits.map((bit) => ((bit << 1) ^ (bit >> 31)) >>> 0);
  return [4 * values.length, 0, 0, 0, ...[0, 8, 16, 24].flatMap((plane) => zigzag.map((bit) => (bit >>> plane) & 255))];
}

const HEADER = {
  sides: 1,
  discount: 1,
  types: [["Ship", ["x", "y"], [["colour", ["red", "blue"]]]]],
  global: [[], []],
  actions: [["steer", "CategoricalActionSpace", { index_to_label: ["left", "right"] }], ["fire", "SelectEntityActionSpace", {}]], // prettier-ignore
  rounding: [],
  attention: "whole",
};
const SCHEMA = { steps: 0, global: false, identity: [], kinds: [], visible: [], masks: [], probs: [0, 1], beside: null, by_hand: null, names: [], chunks: [] }; // prettier-ignore

/** A step in which two ships steer, and the first one fires at the second. */
function step(reward: number, x = 3): string {
  const floats = (...values: number[]) => column(values, true);
  const ships = [...column([2]), ...floats(x, 4), ...floats(1, 2)];
  const steer = [...column([2]), ...column([0, 1]), ...column([0, 1]), ...floats(0.75, 0.25, 0.5, 0.5)];
  const fire = [...column([1]), ...column([0]), ...column([1]), ...column([1]), ...column([0]), ...floats(1)];
  return btoa(String.fromCharCode(...floats(reward), ...floats(0.5), ...ships, ...steer, ...fire));
}

function begun(): { live: Live; sent: Record<string, unknown>[]; receive: (...messages: Message[]) => void } {
  const sent: Record<string, unknown>[] = [];
  const live = new Live("token", { send: (text) => sent.push(JSON.parse(text)) });
  const receive = (...messages: Message[]) => messages.forEach((message) => live.receive(message, 1000));
  const header = { ...structuredClone(HEADER), episodes: [] } as unknown as Header;
  const schema = SCHEMA as unknown as Schema;
  receive({ type: "welcome", header, fps: 10, paused: false }, { type: "episode", episode: 7, schema, about: "step 1" });
  return { live, sent, receive };
}

const waiting = (step_: number, raw?: string): Message => ({ type: "waiting", episode: 7, step: step_, raw, actors: [[0, 0, 0], [0, 0, 1], [0, 1, 0]], ms: 500 }); // prettier-ignore
const places: Message = { type: "places", places: [[0, "0#0"]], yours: true };

test("an episode grows, and what was not received is a gap", async () => {
  const { live, receive } = begun();
  receive({ type: "steps", episode: 7, first: 0, count: 1, raw: step(1) });
  receive({ type: "steps", episode: 7, first: 3, count: 1, raw: step(2) });
  const replay = live.replay!;
  const frames = await Promise.all([0, 1, 2, 3, 4].map((at) => replay.frame(0, at, 0)));
  assert.deepEqual(frames.map((frame) => frame?.reward ?? null), [1, null, null, 2, null]); // prettier-ignore
  assert.deepEqual(frames[3]!.entities.map(({ numbers }) => numbers), [[3, 1], [4, 2]]); // prettier-ignore
  assert.deepEqual(replay.seriesOf(0, 0).reward, [1, NaN, NaN, 2]);
  assert.equal(replay.header.episodes[0].steps, 4);
  receive({ type: "end", episode: 7, terminated: true, truncated: false });
  receive({ type: "episode", episode: 8, schema: SCHEMA as unknown as Schema, about: "step 2" });
  assert.deepEqual(replay.header.episodes.map(({ terminated, about }) => [terminated ?? null, about]), [[true, "step 1"], [null, "step 2"]]); // prettier-ignore
  assert.equal(await replay.frame(1, 0, 0), null);
});

test("steps that cannot be read are gaps, too", async () => {
  const { live, receive } = begun();
  receive({ type: "steps", episode: 7, first: 0, count: 2, raw: step(1) });
  assert.equal(await live.replay!.frame(0, 0, 0), null);
  assert.deepEqual([...live.replay!.damaged], []);
});

test("the frame that waits becomes the final one", async () => {
  const { live, receive } = begun();
  receive(places, waiting(0, step(0)));
  assert.deepEqual([live.waiting!.episode, live.waiting!.step, live.waiting!.until], [0, 0, 1500]);
  assert.ok(Number.isNaN((await live.replay!.frame(0, 0, 0))!.reward), "a reward before the step");
  assert.deepEqual(live.replay!.seriesOf(0, 0).reward, [NaN]);
  receive({ type: "steps", episode: 7, first: 0, count: 1, raw: step(9) });
  assert.equal(live.waiting, null);
  assert.equal((await live.replay!.frame(0, 0, 0))!.reward, 9);
});

test("decisions of my places are open, one after the other", async () => {
  const { live, sent, receive } = begun();
  receive(places, waiting(0, step(0)));
  const frame = (await live.replay!.frame(0, 0, 0))!;
  assert.deepEqual([0, 1].map((actor) => isIn(live.places, frame, actor)), [true, false]); // prettier-ignore
  const steer = openDecision(live, frame, 0)!;
  assert.equal(steer.name, "steer");
  assert.equal(openDecision(live, frame, 1), null);
  assert.equal(openDecision(live, frame, null), null);
  live.choose(frame, steer.action, steer.actor, 1);
  assert.deepEqual(sent, [{ type: "choose", episode: 7, step: 0, choices: [[0, 0, 0, 1]] }]);
  const fire = openDecision(live, frame, 0)!;
  assert.deepEqual([fire.name, fire.choices[0].target], ["fire", 1]);
  live.choose(frame, fire.action, fire.actor, 0);
  assert.equal(openDecision(live, frame, 0)!.name, "steer"); // can be changed while another actor waits
  receive(waiting(0));
  assert.deepEqual([...live.waiting!.chosen], [["0,0,0", 1], ["0,1,0", 0]]); // prettier-ignore
  receive({ ...waiting(1), episode: 7 } as Message);
  assert.equal(live.waiting!.chosen.size, 0);
  receive(waiting(0));
  receive({ type: "places", places: [[0, "0#0"]], yours: false });
  assert.equal(openDecision(live, frame, 0), null);
});

test("what the agent would take is advice, which can be hidden, or told after the choice", async () => {
  const { live, receive } = begun();
  receive(places, waiting(0, step(0)));
  const frame = (await live.replay!.frame(0, 0, 0))!;
  const shares = (of: typeof frame) => of.decisions.map(({ choices }) => choices.map(({ probability }) => probability));
  const seen = ({ decisions }: typeof frame) => decisions.map(({ byHand, choices }) => [byHand, choices.findIndex(({ isChosen }) => isChosen), choices.findIndex(({ isAdvised }) => isAdvised)]); // prettier-ignore
  const agents = [false, 1, -1]; // of an actor that nobody took

  // Before a choice: the agent's is advice, and the reward is not known.
  assert.deepEqual(shares(withAdvice(frame, live, "shown")), [[0.75, 0.25], [0.5, 0.5], [1]]); // prettier-ignore
  assert.deepEqual(seen(withAdvice(frame, live, "shown")), [[false, -1, 0], agents, [false, -1, 0]]);
  assert.ok(Number.isNaN(withAdvice(frame, live, "shown").reward));
  for (const advice of ["hidden", "after"]) {
    assert.deepEqual(shares(withAdvice(frame, live, advice)), [[NaN, NaN], [0.5, 0.5], [NaN]]); // prettier-ignore
    assert.deepEqual(seen(withAdvice(frame, live, advice)), [[false, -1, -1], agents, [false, -1, -1]]);
  }

  // After it, the person's is chosen.
  live.choose(frame, 0, 0, 1);
  assert.deepEqual(seen(withAdvice(frame, live, "shown")), [[true, 1, 0], agents, [false, -1, 0]]);
  assert.deepEqual(seen(withAdvice(frame, live, "after")), [[true, 1, 0], agents, [false, -1, -1]]);
  assert.deepEqual(seen(withAdvice(frame, live, "hidden")), [[true, 1, -1], agents, [false, -1, -1]]);

  // Who looks on sees what the agent advises; in a step that is over, all is as it is.
  receive({ type: "places", places: [[0, "0#0"]], yours: false });
  assert.deepEqual(shares(withAdvice(frame, live, "hidden")), shares(frame));
  receive({ type: "steps", episode: 7, first: 0, count: 1, raw: step(9) });
  assert.equal(withAdvice(frame, live, "hidden"), frame);
  assert.equal(compared("Ship 1", frame.decisions[0], 1), "Ship 1: you chose right (25.0%), the agent left (75.0%).");
});

test("a frame is explained once", async () => {
  const { live, sent, receive } = begun();
  receive({ type: "steps", episode: 7, first: 0, count: 1, raw: step(0) });
  const frame = (await live.replay!.frame(0, 0, 0))!;
  live.requestExplanation(frame);
  live.requestExplanation(frame);
  assert.deepEqual(sent, [{ type: "explain", episode: 7, step: 0, side: 0 }]);
  assert.equal(live.withExplanation(frame).influence, null);
  const weights = btoa(String.fromCharCode(...new Uint8Array(Float32Array.of(0.1, 0.9, 0.5, 0.5).buffer)));
  const attention = { layers: 1, heads: 1, size: 2, weights };
  const influence = { entities: [1], values: [null], choices: [[0, [[0.25, null]]]] };
  receive({ type: "explained", episode: 7, step: 0, side: 0, attention, influence } as Message);
  const explained = live.withExplanation(frame);
  assert.deepEqual([...explained.attention!.weights].map((weight) => weight.toFixed(1)), ["0.1", "0.9", "0.5", "0.5"]); // prettier-ignore
  assert.deepEqual([explained.influence!.values, explained.influence!.choices.get(0)], [[NaN], [[0.25, NaN]]]); // prettier-ignore
  live.requestExplanation(frame);
  assert.equal(sent.length, 1);
});

test("changes replace each other, and are shown with the answer beside", async () => {
  const { live, sent, receive } = begun();
  receive({ type: "steps", episode: 7, first: 0, count: 1, raw: step(0) });
  const frame = (await live.replay!.frame(0, 0, 0))!;
  let changes: Change[] = [];
  const steps: Change[] = [{ position: 0, feature: 1, value: 5 }, { position: 0, feature: 1, value: 6 }, { position: 1, visible: false }, { position: 0, kind: 0, value: 1 }]; // prettier-ignore
  for (const change of steps) changes = withChange(changes, change);
  assert.deepEqual(changes, steps.slice(1));
  assert.deepEqual(withChange(changes, { position: 1, visible: false }), [steps[1], steps[3]]);
  live.requestWhatIf(frame, changes);
  assert.deepEqual(sent, [{ type: "what_if", episode: 7, step: 0, side: 0, changes }]);
  receive({ type: "what_if", episode: 7, step: 0, side: 0, value: 2, decisions: [[0, 0, [0.1, 0.9]], [1, 0, [null]]] }); // prettier-ignore
  const found = changed(frame, changes, live.answer, () => ["red", "blue"]);
  assert.deepEqual([found.all[0].numbers, found.all[0].labels, found.all[1].isVisible], [[3, 6], ["blue"], false]);
  assert.deepEqual(found.decisions.map(({ choices }) => choices.map(({ beside }) => beside)), [[0.1, 0.9], [NaN, NaN], [NaN]]); // prettier-ignore
  assert.deepEqual([found.value, found.besideValue, frame.all[0].numbers], [0.5, 2, [3, 1]]);
  assert.ok(Number.isNaN(changed({ ...frame, step: 1 }, changes, live.answer, () => []).besideValue)); // of another frame
});

test("an entity that is dragged stays on whole numbers where it was on them", () => {
  const at = (x: number) => ({ position: 2, numbers: [9, x, 4] }) as never;
  assert.deepEqual(moved(at(3), [1, 2], [4.6, 4.2]), [{ position: 2, feature: 1, value: 5 }]);
  assert.deepEqual(moved(at(3.5), [1, 2], [4.61234, 4]), [{ position: 2, feature: 1, value: 4.612 }]);
});

test("a second coordinate alone is dragged along its axis", () => {
  const entity = { position: 2, numbers: [9, 4] } as never;
  assert.deepEqual(moved(entity, [-1, 1], [3, 6.2]), [{ position: 2, feature: 1, value: 6 }]);
});

test("errors are told until something else is asked for, and so is the end", () => {
  const { live, receive } = begun();
  receive({ type: "error", text: "another tab has the places" });
  assert.equal(live.notice, "another tab has the places");
  live.send("give");
  assert.equal(live.notice, "");
  receive(places, waiting(0, step(0)));
  live.end("the server has ended");
  assert.equal(live.notice, "Disconnected: the server has ended; what was seen stays.");
  assert.deepEqual([live.waiting, live.isMine, live.places], [null, false, []]);
});

test("what an agent does not see is known by type and column", () => {
  const header = { unseen: { agent: [[0, [2]], [1, null]], beside: [[1, null]] } } as unknown as Header; // prettier-ignore
  assert.deepEqual(unseenBy(header, 0, 2), ["the agent"]);
  assert.deepEqual(unseenBy(header, 0, 1), []);
  assert.deepEqual(unseenBy(header, 0, null), []);
  assert.deepEqual(unseenBy(header, 1, null), ["the agent", "the other agent"]);
  assert.deepEqual(unseenBy({} as Header, 1, null), []);
});

/** A step in which a ship chooses a speed after it has chosen to go, or does not. */
function chained(goes: boolean): [Header, string] {
  const actions = [
    ["speed", "ContinuousActionSpace", { index_to_component: ["v"], after: "go", when: ["yes"] }],
    ["go", "CategoricalActionSpace", { index_to_label: ["no", "yes"] }],
  ];
  const header = { ...structuredClone(HEADER), version: 2, types: [["Ship", ["x"], []]], actions, episodes: [] } as unknown as Header;
  const floats = (...values: number[]) => column(values, true);
  const taken = [1, 0, 0, 0, goes ? 128 : 0];
  const range = goes ? [1, 0.5, 0, 2] : [NaN, NaN, NaN, NaN];
  const speed = [...column([1]), ...column([0]), ...taken, ...floats(goes ? 1.5 : 0), ...floats(0), ...floats(3), ...floats(...range)];
  const go = [...column([1]), ...column([0]), ...column([goes ? 1 : 0]), ...floats(0.25, 0.75)];
  return [header, btoa(String.fromCharCode(...floats(0), ...floats(0), ...column([1]), ...floats(5), ...speed, ...go))];
}

test("numbers stand below the choice that they depend on, and wait for it", async () => {
  for (const goes of [false, true]) {
    const [header, raw] = chained(goes);
    const live = new Live("token", { send: () => {} });
    const receive = (...messages: Message[]) => messages.forEach((message) => live.receive(message, 1000));
    const schema = SCHEMA as unknown as Schema;
    receive({ type: "welcome", header, fps: null, paused: false }, { type: "episode", episode: 7, schema, about: "" });
    receive({ type: "places", places: [[0, null]], yours: true });
    receive({ type: "waiting", episode: 7, step: 0, raw, actors: [[0, goes ? 0 : 1, 0]], ms: null });
    const frame = (await live.replay!.frame(0, 0, 0))!;
    assert.deepEqual(frame.decisions.map(({ name, depth, isTaken }) => [name, depth, isTaken]), [["go", 0, true], ["speed", 1, goes]]); // prettier-ignore
    const [, speed] = frame.decisions;
    assert.deepEqual(speed.choices, []);
    assert.deepEqual(speed.numbers[0].shown, goes ? [1, 0.5, 0, 2] : [NaN, NaN, NaN, NaN]);
    assert.deepEqual([speed.numbers[0].low, speed.numbers[0].high, speed.numbers[0].chosen], [0, 3, goes ? 1.5 : NaN]);
    const open = openDecision(live, frame, 0)!;
    assert.equal(open.name, goes ? "speed" : "go");
    const shown = withAdvice(frame, live, "shown").decisions[1].numbers[0];
    assert.deepEqual([shown.chosen, shown.advised], [NaN, goes ? 1.5 : NaN]);
    if (!goes) continue;
    assert.equal(compared("Ship 1", open, [2]), "Ship 1: you chose v=2, the agent v=1.5.");
    live.choose(frame, open.action, 0, [2]);
    assert.deepEqual(withAdvice(frame, live, "shown").decisions[1].numbers[0].chosen, 2);
    // The choice before it changes: the number waits again.
    live.choose(frame, 1, 0, 0);
    assert.equal(live.chosenIn(frame, open), undefined);
    const answer = { episode: 0, step: 0, side: 0, value: 1, decisions: [[0, 0, [2, 1, 0, null]]] } as never;
    assert.deepEqual(changed(frame, [], answer, () => []).decisions[1].numbers[0].beside, [2, 1, 0, NaN]);
  }
});
