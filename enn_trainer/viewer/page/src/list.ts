/** The list of entities: one table for each type, which can be sorted. */

import type { Header } from "./codec.js";
import { button, el, faint, named, numbersText, row, shown, table, tag } from "./dom.js";
import type { Shown } from "./main.js";
import type { Entity } from "./model.js";

const MOST_ROWS = 60;

export class EntityList {
  /** By type: the column to sort by, and the direction. */
  private order = new Map<number, [column: number, sign: 1 | -1]>();
  /** Types of which all rows are shown. */
  private isLong = new Set<number>();

  // prettier-ignore
  constructor(private target: HTMLElement, private header: Header, private select: (position: number) => void, private again: () => void) {}

  show(shows: Shown): void {
    const chosen = new Map<number, string[]>();
    for (const { actor, name, choices, numbers, byHand, isTaken } of shows.frame.decisions) {
      if (!isTaken) continue;
      const choice = choices.find(({ isChosen }) => isChosen) ?? choices.find(({ isAdvised }) => isAdvised);
      const isAdvised = choice?.isChosen === false || numbers.some(({ advised, chosen }) => advised !== undefined && Number.isNaN(chosen));
      const label = choice?.label ?? (numbers.length ? numbersText(numbers) : "?");
      const text = `${name}: ${label}${byHand ? " (by hand)" : isAdvised ? " (advised)" : ""}`;
      chosen.set(actor, [...(chosen.get(actor) ?? []), text]);
    }
    const types = this.header.types.map((_, type) => shows.frame.entities.filter((entity) => entity.type === type));
    const tables = types.flatMap((entities) => (entities.length ? [this.table(shows, entities, chosen)] : []));
    this.target.replaceChildren(...(tables.length ? tables : [faint("There are no entities in this step.")]));
  }

  private change(what: () => void): void {
    what();
    this.again();
  }

  private table({ previous, selected, lit }: Shown, entities: Entity[], chosen: Map<number, string[]>): Node {
    const [{ type }] = entities;
    const [typeName, numbers, kinds] = this.header.types[type];
    const columns = [...numbers, ...kinds.map(([kind]) => kind)];
    const acts = entities.some(({ position }) => chosen.has(position));
    const cell = ({ name, numbers, labels }: Entity, column: number): number | string =>
      column < 0 ? name : column < numbers.length ? numbers[column] : labels[column - numbers.length];
    const [by, sign] = this.order.get(type) ?? [NaN, 1];
    const sorted = Number.isNaN(by) ? entities : entities.sort((a, b) => sign * compared(cell(a, by), cell(b, by)));
    const headings = ["name", ...columns].map((text, i) => {
      const column = i - 1;
      const isSorted = by === column;
      const sort = () => this.change(() => this.order.set(type, [column, isSorted && sign > 0 ? -1 : 1]));
      const order = isSorted ? (sign > 0 ? "ascending" : "descending") : undefined;
      return el("th", { scope: "col", "aria-sort": order }, button(named(text), sort), isSorted && (sign > 0 ? " ▲" : " ▼"));
    });
    const shownRows = this.isLong.has(type) ? sorted : sorted.slice(0, MOST_ROWS);
    const rows = shownRows.map((entity) => {
      const { position, isVisible, key } = entity;
      const old = previous?.entities.find((one) => one.key === key && one.type === type);
      const cells = columns.map((_, i) => {
        const value = cell(entity, i);
        const isChanged = old && !Object.is(cell(old, i), value);
        const content = typeof value === "number" ? shown(value) : named(value);
        return el("td", { class: isChanged ? "changed" : undefined, "data-value": value }, content);
      });
      if (acts) cells.push(el("td", { class: "chosen" }, named((chosen.get(position) ?? []).join(", "))));
      const heading = [button(named(entity.name), () => this.select(position)), !isVisible && tag("hidden"), lit.includes(position) && tag("can be chosen", "chosen")];
      return row({ "data-position": position, "aria-current": position === selected && "true" }, heading, ...cells);
    });
    const showAll = () => this.change(() => this.isLong.add(type));
    const cut = shownRows.length < entities.length ? [`, the first ${MOST_ROWS}, `, button("show all", showAll)] : [];
    const caption = [named(typeName), ` (${entities.length})`, ...cut];
    return table({ class: "list" }, caption, acts ? [...headings, "chosen"] : headings, rows);
  }
}

function compared(a: number | string, b: number | string): number {
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}
