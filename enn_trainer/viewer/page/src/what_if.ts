/** Changes of a frame, and the agent's answer to the changed frame. */

import { NUMBERS_SHOWN } from "./codec.js";
import type { Entity, Frame } from "./model.js";

type Edit = { feature: number; value: number } | { kind: number; value: number } | { visible: false } | { removed: true };
/** A change of an entity, as it is sent to the server. */
export type Change = { position: number } & Edit;

/** Value and probabilities of a changed frame; null for what is not in it, or not finite. */
export type Answer = Pick<Frame, "episode" | "step" | "side"> & {
  value: number | null;
  decisions: [action: number, actor: number, probabilities: (number | null)[]][];
};

/** Return changes with one more, in place of that of the same thing; to hide or remove again takes it back. */
export function withChange(changes: Change[], change: Change): Change[] {
  const others = changes.filter((one) => !isOfSame(one, change));
  return others.length < changes.length && !("value" in change) ? others : [...others, change];
}

/** Return true if two changes are of the same thing of an entity. */
export function isOfSame(one: Change, other: Change): boolean {
  const thingOf = (change: Change) => JSON.stringify(Object.entries({ ...change, value: 0 }).sort());
  return thingOf(one) === thingOf(other);
}

/** Return a frame with changes; the answer to them takes the place of another agent. */
export function changed(frame: Frame, changes: Change[], answer: Answer | null, labels: (type: number, kind: number) => string[]): Frame {
  const entityOf = (entity: Entity): Entity => {
    const found = { ...entity, numbers: [...entity.numbers], labels: [...entity.labels] };
    for (const change of changes.filter(({ position }) => position === entity.position)) {
      if ("feature" in change) found.numbers[change.feature] = change.value;
      else if ("kind" in change) found.labels[change.kind] = labels(entity.type, change.kind)[change.value];
      else found.isVisible = false;
    }
    return found;
  };
  const all = frame.all.map(entityOf);
  const isOfFrame = answer?.episode === frame.episode && answer.step === frame.step && answer.side === frame.side;
  const decisions = frame.decisions.map((decision) => {
    const own = isOfFrame ? answer.decisions.find(([action, actor]) => action === decision.action && actor === decision.actor) : null;
    const choices = decision.choices.map((choice, i) => ({ ...choice, beside: own?.[2][i] ?? NaN }));
    const besideOf = (i: number) => (own?.[2] ?? []).slice(NUMBERS_SHOWN * i, NUMBERS_SHOWN * (i + 1)).map((one) => one ?? NaN);
    return { ...decision, choices, numbers: decision.numbers.map((one, i) => ({ ...one, beside: besideOf(i) })) };
  });
  const entities = all.slice(0, frame.entities.length);
  return { ...frame, all, entities, decisions, besideValue: isOfFrame ? (answer.value ?? NaN) : NaN };
}

/** Return the changes by which an entity comes to a place, which are whole numbers where its own place is. */
export function moved(entity: Entity, columns: number[], place: number[]): Change[] {
  const isWhole = columns.every((column) => column < 0 || Number.isInteger(entity.numbers[column]));
  const values = place.map((value) => (isWhole ? Math.round(value) : Number(value.toPrecision(4))));
  const all = columns.map((feature, i) => ({ position: entity.position, feature, value: values[i] }));
  return all.filter(({ feature, value }) => feature >= 0 && value !== entity.numbers[feature]);
}
