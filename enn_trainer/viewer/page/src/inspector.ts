/** What is known of a frame and of an entity in it, as tables. */

import type { Header } from "./codec.js";
import { allTypes } from "./codec.js";
import { button, el, faint, named, percent, row, shown, table, tag } from "./dom.js";
import { attentionWeight } from "./model.js";
import type { Attention, Choice, Decision, Entity, Frame } from "./model.js";

const MOST_CHOICES = 40;

/** What an inspector shows. */
export interface Inspected {
  header: Header;
  frame: Frame;
  previous: Frame | null;
  selected: number | null;
  returnToGo: number;
  /** The episode ended by itself, so that all of the return came. */
  isWhole: boolean;
  hasBeside: boolean;
  /** Layer and head whose attention is shown, -1 for their mean. */
  heads: [layer: number, head: number] | null;
  select: (position: number | null) => void;
}

export function inspect(target: HTMLElement, shows: Inspected): void {
  const { frame, previous, selected, heads } = shows;
  const entity = selected === null ? frame.global : (frame.all[selected] ?? null);
  const parts: (Node | null)[] = [outcome(shows)];
  if (entity) {
    const before = previous?.all.find(({ key }) => key === entity.key) ?? null;
    const decisions = frame.decisions.filter(({ actor }) => actor === entity.position);
    parts.push(
      el("h2", { "data-entity": entity.position }, named(entity.name), ...tags(entity)),
      features(shows, entity, before),
      ...decisions.map((decision) => choices(shows, decision)),
      decisions.length ? null : faint("It has nothing to choose in this step."),
      influences(shows, entity),
      heads && frame.attention && attentions(shows, frame.attention, entity.position, heads),
    );
  }
  if (selected === null && frame.entities.length)
    parts.push(faint("Choose an entity in the scene, in the list, or with the keys j and k."));
  target.replaceChildren(...parts.filter((part) => part !== null));
}

function tags({ isGlobal, name, typeName, isVisible }: Entity): Node[] {
  const isNamed = isGlobal || name.startsWith(typeName);
  return [...(isNamed ? [] : [tag(typeName)]), ...(isVisible ? [] : [tag("hidden from the policy")])];
}

function outcome({ frame, returnToGo, isWhole, hasBeside }: Inspected): Node {
  const rows: [string, string, number][] = [
    ["value", "value", frame.value],
    ["value, other agent", "beside-value", frame.besideValue],
    [isWhole ? "return that came" : "return that came until the cut", "return", returnToGo],
    ["value less return", "value-error", frame.value - returnToGo],
    ["reward of this step", "reward", frame.reward],
  ];
  if (!hasBeside) rows.splice(1, 1);
  const items = rows.map(([label, name, value]) =>
    el("div", {}, el("dt", {}, label), el("dd", { "data-number": name, "data-value": value }, shown(value))),
  );
  return el("dl", { class: "outcome" }, ...items);
}

function features({ header }: Inspected, entity: Entity, before: Entity | null): Node {
  const [, numbers, kinds] = allTypes(header)[entity.type];
  const line = <T extends number | string>(name: string, value: T, old: T | undefined, cell: Node | string, change: (old: T) => Node | string) => {
    const isChanged = old !== undefined && !Object.is(value, old);
    const attributes = { "data-feature": name, "data-value": value, class: isChanged ? "changed" : undefined };
    return row(attributes, named(name), cell, old === undefined ? "new" : isChanged && change(old));
  };
  const rows = [
    ...entity.numbers.map((value, j) =>
      line(numbers[j], value, before?.numbers[j], shown(value), (old) => `${value > old ? "+" : ""}${shown(value - old)}`),
    ),
    ...entity.labels.map((label, k) =>
      line(kinds[k][0], label, before?.labels[k], named(label), (old) => el("span", {}, "was ", named(old))),
    ),
  ];
  return rows.length ? table({ class: "features" }, [], ["feature", "value", "change"], rows) : faint("It has no features.");
}

function choices(shows: Inspected, { name, byHand, choices }: Decision): Node {
  const isLong = choices.some(({ target }) => target !== null) || choices.length > MOST_CHOICES;
  const order = [...choices];
  if (isLong) order.sort((a, b) => Number(b.isChosen) - Number(a.isChosen) || (b.probability || 0) - (a.probability || 0));
  const rows = order.slice(0, MOST_CHOICES).map((choice) => choiceRow(shows, choice));
  const headings = ["choice", "probability", ...(shows.hasBeside ? ["other agent"] : [])];
  const caption = [named(name), byHand && tag("chosen by a person")];
  const found = table({ class: "choices", "data-action": name }, caption, headings, rows);
  if (order.length <= MOST_CHOICES) return found;
  return el("div", {}, found, faint(`${order.length - MOST_CHOICES} less probable ones are not shown.`));
}

function choiceRow({ hasBeside, select }: Inspected, choice: Choice): Node {
  const { label, target, probability, beside, isAllowed, isChosen } = choice;
  const bar = (value: number) => {
    const cell = el("td", { class: "bar" }, el("span", {}, isAllowed ? percent(value) : "–"));
    cell.style.setProperty("--share", isAllowed && value > 0 ? String(value) : "0");
    return cell;
  };
  const attributes = {
    "data-choice": label,
    "data-probability": probability,
    "data-beside": hasBeside && beside,
    "data-chosen": isChosen,
    "data-forbidden": !isAllowed,
  };
  const text = target === null ? named(label) : button(named(label), () => select(target));
  const heading = [text, isChosen && tag("chosen", "chosen"), !isAllowed && tag("forbidden", "forbidden")];
  return row(attributes, heading, ...[probability, ...(hasBeside ? [beside] : [])].map(bar));
}

/** Return the change of an entity's choices without each entity of an influence, -1 where it is not known. */
export function influenceOn({ influence, decisions }: Frame, position: number): number[] {
  const own = decisions.filter(({ actor }) => actor === position);
  return (influence?.entities ?? []).map((_, i) => {
    const changes = own.map((decision) => {
      const place = decisions.filter(({ action }) => action === decision.action).indexOf(decision);
      return influence!.choices.get(decision.action)?.[i]?.[place] ?? NaN;
    });
    return Math.max(-1, ...changes.filter(Number.isFinite));
  });
}

/** The entities without which this one would choose otherwise, the strongest first. */
function influences(shows: Inspected, entity: Entity): Node | null {
  const { influence } = shows.frame;
  if (!influence) return null;
  const changes = influenceOn(shows.frame, entity.position);
  const found = influence.entities.map((position, i) => ({ position, change: changes[i], value: influence.values[i] }));
  found.sort((a, b) => b.change - a.change || Math.abs(b.value) - Math.abs(a.value));
  const rows = found.map(({ position, change, value }): Row => [position, change < 0 ? "–" : percent(change), shown(value)]);
  return ranking(shows, "influence", ["without", "choice changes", "value it adds"], rows);
}

/** The entities that one attends to most, and how much they attend to it. */
function attentions(shows: Inspected, of: Attention, from: number, [layer, head]: [number, number]): Node {
  const weights = shows.frame.all
    .filter(({ position }) => position < of.size && from < of.size)
    .map(({ position }) => [position, attentionWeight(of, layer, head, from, position), attentionWeight(of, layer, head, position, from)]);
  weights.sort((a, b) => b[1] - a[1]);
  const rows = weights.map(([position, to, back]): Row => [position, percent(to), percent(back)]);
  return ranking(shows, "attention", ["entity", "to it", "from it"], rows);
}

type Row = [position: number, ...cells: string[]];

/** A table of the first entities of a ranking. */
function ranking({ frame, select }: Inspected, name: string, headings: string[], rows: Row[]): Node {
  const found = rows.slice(0, 8).filter(([position]) => frame.all[position]);
  const lines = found.map(([at, ...cells]) => row({}, button(named(frame.all[at].name), () => select(at)), ...cells));
  return table({ class: name }, [name], headings, lines);
}
