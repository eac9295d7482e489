/** What is known of a frame and of an entity in it, as tables. */

import type { Header } from "./codec.js";
import { el, named, percent, shown } from "./dom.js";
import { attentionWeight } from "./model.js";
import type { Attention, Choice, Decision, Entity, Frame } from "./model.js";

const MOST_CHOICES = 40;

/** What an inspector shows. */
export interface Inspected {
  frame: Frame;
  previous: Frame | null;
  selected: number | null;
  returnToGo: number;
  /** The episode ended by itself, so that all of the return came. */
  isWhole: boolean;
  hasBeside: boolean;
  /** Layer and head whose attention is shown, -1 for their mean. */
  heads: [layer: number, head: number] | null;
}

/** Return all entities of a frame, what is global behind them. */
export function entitiesOf(frame: Frame): Entity[] {
  return frame.global ? [...frame.entities, frame.global] : frame.entities;
}

export function inspect(target: HTMLElement, header: Header, shows: Inspected, select: (position: number | null) => void): void {
  const { frame, previous, selected, hasBeside } = shows;
  const entity = selected === null ? frame.global : (entitiesOf(frame)[selected] ?? null);
  const parts: Node[] = [outcome(shows)];
  if (entity) {
    const before = previous && entitiesOf(previous).find(({ key }) => key === entity.key);
    parts.push(el("h2", { "data-entity": entity.position }, named(entity.name), ...tag(entity)));
    parts.push(features(header, entity, before ?? null));
    const decisions = frame.decisions.filter(({ actor }) => actor === entity.position);
    for (const decision of decisions) parts.push(choices(decision, hasBeside, select));
    if (!decisions.length) parts.push(el("p", { class: "faint" }, "It has nothing to choose in this step."));
    const influence = influences(frame, entity, select);
    if (influence) parts.push(influence);
    if (shows.heads && frame.attention) parts.push(attentions(frame, frame.attention, entity.position, shows.heads, select));
  }
  if (selected === null && frame.entities.length)
    parts.push(el("p", { class: "faint" }, "Choose an entity in the scene, in the list, or with the keys j and k."));
  target.replaceChildren(...parts);
}

function tag(entity: Entity): Node[] {
  const notes = [entity.isGlobal || entity.name.startsWith(entity.typeName) ? "" : entity.typeName];
  if (!entity.isVisible) notes.push("hidden from the policy");
  return notes.filter((note) => note).map((note) => el("span", { class: "tag" }, named(note)));
}

function outcome({ frame, returnToGo, isWhole, hasBeside }: Inspected): Node {
  const rows: [string, string, number][] = [
    ["value", "value", frame.value],
    ...(hasBeside ? [["value, other agent", "beside-value", frame.besideValue] as [string, string, number]] : []),
    [isWhole ? "return that came" : "return that came until the cut", "return", returnToGo],
    ["value less return", "value-error", frame.value - returnToGo],
    ["reward of this step", "reward", frame.reward],
  ];
  const list = el("dl", { class: "outcome" });
  for (const [label, name, value] of rows)
    list.append(el("div", {}, el("dt", {}, label), el("dd", { "data-number": name, "data-value": value }, shown(value))));
  return list;
}

function features(header: Header, entity: Entity, before: Entity | null): Node {
  const isType = entity.type < header.types.length;
  const [numbers, kinds] = isType ? header.types[entity.type].slice(1) as typeof header.global : header.global;
  const body = el("tbody");
  entity.numbers.forEach((value, j) => {
    const change = before ? value - before.numbers[j] : NaN;
    const isChanged = before !== null && !Object.is(value, before.numbers[j]);
    body.append(
      el(
        "tr",
        { "data-feature": numbers[j], "data-value": value, class: isChanged ? "changed" : undefined },
        el("th", { scope: "row" }, named(numbers[j])),
        el("td", {}, shown(value)),
        el("td", {}, !before ? "new" : isChanged ? `${change > 0 ? "+" : ""}${shown(change)}` : ""),
      ),
    );
  });
  entity.labels.forEach((label, k) => {
    const isChanged = before !== null && label !== before.labels[k];
    body.append(
      el(
        "tr",
        { "data-feature": kinds[k][0], "data-value": label, class: isChanged ? "changed" : undefined },
        el("th", { scope: "row" }, named(kinds[k][0])),
        el("td", {}, named(label)),
        el("td", {}, ...(isChanged ? ["was ", named(before.labels[k])] : [])),
      ),
    );
  });
  if (!body.children.length) return el("p", { class: "faint" }, "It has no features.");
  const head = el("tr", {}, ...["feature", "value", "change"].map((name) => el("th", { scope: "col" }, name)));
  return el("table", { class: "features" }, el("thead", {}, head), body);
}

function choices({ name, byHand, choices }: Decision, hasBeside: boolean, select: (position: number) => void): Node {
  const body = el("tbody");
  const isSelect = choices.some(({ target }) => target !== null);
  const order = [...choices];
  if (isSelect || choices.length > MOST_CHOICES)
    order.sort((a, b) => Number(b.isChosen) - Number(a.isChosen) || (b.probability || 0) - (a.probability || 0));
  for (const choice of order.slice(0, MOST_CHOICES)) body.append(choiceRow(choice, hasBeside, select));
  const head = ["choice", "probability", ...(hasBeside ? ["other agent"] : [])];
  const table = el(
    "table",
    { class: "choices", "data-action": name },
    el("caption", {}, named(name), ...(byHand ? [el("span", { class: "tag" }, "chosen by a person")] : [])),
    el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
    body,
  );
  if (order.length <= MOST_CHOICES) return table;
  return el("div", {}, table, el("p", { class: "faint" }, `${order.length - MOST_CHOICES} less probable ones are not shown.`));
}

function choiceRow(choice: Choice, hasBeside: boolean, select: (position: number) => void): Node {
  const { label, target, probability, beside, isAllowed, isChosen } = choice;
  let text: HTMLElement = named(label);
  if (target !== null) {
    text = el("button", { type: "button", class: "link" }, text);
    text.addEventListener("click", () => select(target));
  }
  const notes = [isChosen ? "chosen" : "", isAllowed ? "" : "forbidden"].filter((note) => note);
  const bar = (value: number) => {
    const cell = el("td", { class: "bar" }, el("span", {}, isAllowed ? percent(value) : "–"));
    cell.style.setProperty("--share", isAllowed && value > 0 ? String(value) : "0");
    return cell;
  };
  return el(
    "tr",
    {
      "data-choice": label,
      "data-probability": probability,
      "data-beside": hasBeside ? beside : undefined,
      "data-chosen": isChosen,
      "data-forbidden": !isAllowed,
    },
    el("th", { scope: "row" }, text, ...notes.map((note) => el("span", { class: `tag ${note}` }, note))),
    bar(probability),
    ...(hasBeside ? [bar(beside)] : []),
  );
}

/** The entities without which this one would choose otherwise, the strongest first. */
function influences(frame: Frame, entity: Entity, select: (position: number) => void): Node | null {
  const { influence, decisions } = frame;
  if (!influence) return null;
  const actions = new Set(decisions.filter(({ actor }) => actor === entity.position).map(({ action }) => action));
  const found = influence.entities.map((position, i) => {
    const changes = [...actions].map((action) => {
      const actors = decisions.filter((one) => one.action === action).map(({ actor }) => actor);
      return influence.choices.get(action)?.[i]?.[actors.indexOf(entity.position)] ?? NaN;
    });
    return { position, change: Math.max(-1, ...changes.filter(Number.isFinite)), value: influence.values[i] };
  });
  found.sort((a, b) => b.change - a.change || Math.abs(b.value) - Math.abs(a.value));
  const rows = found.map(({ position, change, value }): Row => [position, change < 0 ? "–" : percent(change), shown(value)]);
  return ranking(frame, "influence", ["without", "choice changes", "value it adds"], rows, select);
}

/** The entities that one attends to most, and how much they attend to it. */
function attentions(frame: Frame, of: Attention, from: number, [layer, head]: [number, number], select: (position: number) => void): Node {
  const weights = entitiesOf(frame)
    .filter(({ position }) => position < of.size && from < of.size)
    .map(({ position }) => [position, attentionWeight(of, layer, head, from, position), attentionWeight(of, layer, head, position, from)]);
  weights.sort((a, b) => b[1] - a[1]);
  const rows = weights.map(([position, to, back]): Row => [position, percent(to), percent(back)]);
  return ranking(frame, "attention", ["entity", "to it", "from it"], rows, select);
}

type Row = [position: number, ...cells: string[]];

/** A table of the first entities of a ranking. */
function ranking(frame: Frame, name: string, heads: string[], rows: Row[], select: (position: number) => void): Node {
  const body = el("tbody");
  for (const [position, ...cells] of rows.slice(0, 8)) {
    const entity = entitiesOf(frame)[position];
    if (!entity) continue;
    const button = el("button", { type: "button", class: "link" }, named(entity.name));
    button.addEventListener("click", () => select(position));
    body.append(el("tr", {}, el("th", { scope: "row" }, button), ...cells.map((cell) => el("td", {}, cell))));
  }
  const head = el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)));
  return el("table", { class: name }, el("caption", {}, name), el("thead", {}, head), body);
}
