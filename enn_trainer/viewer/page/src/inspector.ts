/** What is known of a frame and of an entity in it, as tables. */

import { allTypes } from "./codec.js";
import { boundsText, button, el, faint, named, percent, row, shown, table, tag } from "./dom.js";
import type { Shown } from "./main.js";
import { MOST_RANKED, attentionWeight, strongest, type Attention, type Choice, type Decision, type Entity, type Frame } from "./model.js";
import { unseenBy } from "./view.js";
import { isOfSame, type Change } from "./what_if.js";

const MOST_CHOICES = 40;

export function inspect(target: HTMLElement, shows: Shown): void {
  const { frame, previous, selected, toggles } = shows;
  const entity = frame.all[selected ?? frame.entities.length] ?? null;
  const parts: (Node | null)[] = [outcome(shows)];
  if (entity) {
    const before = previous?.all.find(({ key }) => key === entity.key) ?? null;
    const decisions = frame.decisions.filter(({ actor }) => actor === entity.position);
    parts.push(
      el("h2", { "data-entity": entity.position }, named(entity.name), ...tags(shows, entity)),
      features(shows, entity, before),
      removalButtons(shows, entity),
      ...decisions.map((decision) => decided(shows, decision)),
      decisions.length ? null : faint("It has no action in this step."),
      influences(shows, entity),
      toggles.attention && frame.attention ? attentions(shows, frame.attention, entity.position) : null,
    );
  }
  if (selected === null && frame.entities.length)
    parts.push(faint("Choose an entity in the scene, in the list, or with the keys j and k."));
  const { activeElement } = document;
  const isTyping = activeElement instanceof HTMLInputElement && activeElement.value !== activeElement.defaultValue;
  if (isTyping && target.contains(activeElement)) return;
  const controls = () => [...target.querySelectorAll<HTMLElement>("button, input, select")];
  const focused = controls().indexOf(activeElement as HTMLElement);
  target.replaceChildren(...parts.filter((part) => part !== null));
  controls()[focused]?.focus();
}

function tags({ header, changes }: Shown, { isGlobal, name, type, typeName, position, isVisible }: Entity): Node[] {
  const isRemoved = changes.some((change) => change.position === position && "removed" in change);
  const notes = [
    isGlobal || name.startsWith(typeName) ? "" : typeName,
    isRemoved ? "removed" : isVisible ? "" : "hidden from the policy",
    ...unseenBy(header, type, null).map((who) => `not seen by ${who}`),
  ];
  return notes.filter((note) => note).map((note) => tag(note));
}

function outcome({ frame, returnToGo, until, unknown, beside }: Shown): Node {
  const rows: [string, string, number][] = [
    ["value", "value", frame.value],
    [`value, ${beside}`, "beside-value", frame.besideValue],
    [`return${until}`, "return", returnToGo],
    ["value error", "value-error", frame.value - returnToGo],
    ["reward of this step", "reward", frame.reward],
  ];
  if (beside === null) rows.splice(1, 1);
  const items = rows.map(([label, name, value]) => {
    const title = Number.isNaN(returnToGo) && Number.isNaN(value) && name !== "value" && unknown;
    return el("div", {}, el("dt", {}, label), el("dd", { "data-number": name, "data-value": value, title }, title ? "–" : shown(value)));
  });
  return el("dl", { class: "outcome" }, ...items);
}

function features({ header, edit }: Shown, entity: Entity, before: Entity | null): Node {
  const { type, position, numbers, labels } = entity;
  const [, names, kinds] = allTypes(header)[type];
  const line = (column: number, name: string, value: number | string, old: number | string | undefined, cell: Node) => {
    const isChanged = old !== undefined && !Object.is(value, old);
    const attributes = { "data-feature": name, "data-value": value, class: isChanged ? "changed" : undefined };
    const unseen = unseenBy(header, type, column).map((who) => tag(`not seen by ${who}`));
    const areNumbers = typeof value === "number" && typeof old === "number";
    const change = areNumbers ? `${value > old ? "+" : ""}${shown(value - old)}` : el("span", {}, "was ", named(String(old)));
    return row(attributes, [named(name), ...unseen], cell, old === undefined ? "new" : isChanged && change);
  };
  const number = (feature: number, value: number): HTMLElement => {
    if (!edit) return el("span", {}, shown(value));
    const changed = () => {
      input.defaultValue = input.value;
      if (Number.isFinite(input.valueAsNumber)) edit({ position, feature, value: input.valueAsNumber });
    };
    const input = el("input", { type: "number", step: "any", value, "aria-label": `${names[feature]}, what if`, change: changed });
    return input;
  };
  const kind = (index: number, label: string): HTMLElement => {
    if (!edit) return named(label);
    const changed = () => edit({ position, kind: index, value: select.selectedIndex });
    const options = kinds[index][1].map((one) => el("option", { selected: one === label }, one));
    const select = el("select", { "aria-label": `${kinds[index][0]}, what if`, change: changed }, ...options);
    return select;
  };
  const rows = [
    ...numbers.map((value, j) => line(j, names[j], value, before?.numbers[j], number(j, value))),
    ...labels.map((label, k) => line(names.length + k, kinds[k][0], label, before?.labels[k], kind(k, label))),
  ];
  return rows.length ? table({ class: "features" }, [], ["feature", "value", "change"], rows) : faint("It has no features.");
}

/** Buttons that hide or remove an entity of a changed frame. */
function removalButtons({ edit, changes }: Shown, { position, isGlobal }: Entity): Node | null {
  if (!edit || isGlobal) return null;
  const isOn = (change: Change) => changes.some((one) => isOfSame(one, change));
  const toggle = (text: string, change: Change) => button(text, () => edit(change), { class: "", "aria-pressed": String(isOn(change)) });
  return el("p", {}, toggle("hide", { position, visible: false }), " ", toggle("remove", { position, removed: true }));
}

function decided(shows: Shown, decision: Decision): Node {
  const { name, depth, isTaken, numbers } = decision;
  const empty = el("p", { class: "faint", "data-not-taken": name }, named(name), " is not taken.");
  const found = !isTaken ? empty : numbers.length ? numbersTable(shows, decision) : choices(shows, decision);
  return depth ? el("div", { class: "part", "data-depth": depth }, found) : found;
}

/** Mean, deviation and range of each number on its bounds, and what was chosen. */
function numbersTable({ beside }: Shown, { name, byHand, numbers }: Decision): Node {
  const rows = numbers.map(({ name, low, high, chosen, advised, shown: own, beside: other }) => {
    const [mean, deviation, from, to] = own.length ? own : [NaN, NaN, NaN, NaN];
    const rangeOf = ([mean, , from, to]: number[]) => `${shown(mean)} (${shown(from)} to ${shown(to)})`;
    const bar = el("td", { class: "range" }, boundsText(low, high));
    const place = (value: number) => `${(100 * (value - low)) / (high - low)}%`;
    const places = { low: from, high: to, mean, chosen };
    if (high > low && Number.isFinite(low) && Number.isFinite(mean))
      for (const [what, value] of Object.entries(places)) bar.style.setProperty(`--${what}`, place(Number.isFinite(value) ? value : mean));
    const attributes = { "data-component": name, "data-chosen": Number.isFinite(chosen) && chosen, "data-mean": mean, "data-deviation": deviation, "data-from": from, "data-to": to, "data-low": low, "data-high": high };
    const taken = Number.isNaN(chosen) ? (Number.isFinite(advised) ? el("span", {}, shown(advised!), " ", tag("advised")) : "?") : shown(chosen);
    const cells = own.length ? [shown(mean), shown(deviation), `${shown(from)} to ${shown(to)}`] : ["–", "–", "–"];
    return row(attributes, named(name), taken, ...cells, bar, ...(beside !== null ? [other.length ? rangeOf(other) : "–"] : []));
  });
  const headings = ["number", "chosen", "mean", "deviation", "90% range", "bounds", beside].filter((heading) => heading !== null);
  return table({ class: "numbers", "data-action": name }, [named(name), byHand && tag("chosen by a person")], headings, rows);
}

function choices(shows: Shown, { name, byHand, isSecret = false, choices }: Decision): Node {
  const isLong = choices.some(({ target }) => target !== null) || choices.length > MOST_CHOICES;
  const order = [...choices];
  if (isLong) order.sort((a, b) => Number(b.isChosen) - Number(a.isChosen) || (b.probability || 0) - (a.probability || 0));
  const rows = order.slice(0, MOST_CHOICES).map((choice) => choiceRow(shows, choice, isSecret));
  const headings = ["choice", "probability", shows.beside].filter((heading) => heading !== null);
  const caption = [named(name), byHand && tag("chosen by a person")];
  const found = table({ class: "choices", "data-action": name }, caption, headings, rows);
  if (order.length <= MOST_CHOICES) return found;
  return el("div", {}, found, faint(`${order.length - MOST_CHOICES} less probable ones are hidden.`));
}

function choiceRow(shows: Shown, choice: Choice, isSecret: boolean): Node {
  const { label, target, probability, beside, isAllowed, isChosen, isAdvised } = choice;
  const hasBeside = shows.beside !== null;
  const bar = (value: number) => {
    const cell = el("td", { class: "bar" }, el("span", {}, !isAllowed ? "–" : isSecret ? "?" : percent(value)));
    cell.style.setProperty("--share", isAllowed && value > 0 ? String(value) : "0");
    return cell;
  };
  const attributes = {
    "data-choice": label,
    "data-probability": probability,
    "data-beside": hasBeside && beside,
    "data-chosen": isChosen,
    "data-advised": isAdvised,
    "data-forbidden": !isAllowed,
  };
  const text = target === null ? named(label) : button(named(label), () => shows.select(target));
  const heading = [text, isChosen && tag("chosen", "chosen"), isAdvised === true && tag("advised"), !isAllowed && tag("forbidden", "forbidden")];
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
function influences(shows: Shown, entity: Entity): Node | null {
  const { influence } = shows.frame;
  if (!influence) return null;
  const changes = influenceOn(shows.frame, entity.position);
  const found = influence.entities.map((position, i) => ({ position, change: changes[i], value: influence.values[i] }));
  found.sort((a, b) => b.change - a.change || Math.abs(b.value) - Math.abs(a.value));
  const rows = found.map(({ position, change, value }): Row => [position, change < 0 ? "–" : percent(change), shown(value)]);
  return ranking(shows, "influence", ["without", "choice changes", "change of the value"], rows);
}

/** The entities that one attends to most, and how much they attend to it. */
function attentions(shows: Shown, of: Attention, from: number): Node {
  const [layer, head] = shows.heads;
  const weights = shows.frame.all
    .filter(({ position }) => position < of.size && from < of.size)
    .map(({ position: to }) => [to, attentionWeight(of, layer, head, from, to), attentionWeight(of, layer, head, to, from)]);
  const rows = strongest(weights.map(([, to]) => to)).map((i): Row => {
    const [position, to, back] = weights[i];
    return [position, percent(to), percent(back)];
  });
  return ranking(shows, "attention", ["entity", "to it", "from it"], rows);
}

type Row = [position: number, ...cells: string[]];

/** A table of the first entities of a ranking. */
function ranking({ frame, select }: Shown, name: string, headings: string[], rows: Row[]): Node {
  const found = rows.slice(0, MOST_RANKED).filter(([position]) => frame.all[position]);
  const lines = found.map(([at, ...cells]) => row({}, button(named(frame.all[at].name), () => select(at)), ...cells));
  return table({ class: name }, [name], headings, lines);
}
