/** The list of entities: one table for each type, which can be sorted. */

import type { Header } from "./codec.js";
import { el, named, shown } from "./dom.js";
import type { Entity, Frame } from "./model.js";

const MOST_ROWS = 60;

export class EntityList {
  /** By type: the column to sort by, and the direction. */
  private order = new Map<number, [column: number, sign: 1 | -1]>();
  /** Types of which all rows were asked for. */
  private isLong = new Set<number>();

  constructor(
    private target: HTMLElement,
    private header: Header,
    private select: (position: number) => void,
    private again: () => void,
  ) {}

  show(frame: Frame, previous: Frame | null, selected: number | null): void {
    const before = new Map(previous?.entities.map((entity) => [entity.key, entity]));
    const chosen = new Map<number, string[]>();
    for (const { actor, name, choices, byHand } of frame.decisions) {
      const choice = choices.find(({ isChosen }) => isChosen);
      const text = `${name}: ${choice?.label ?? "?"}${byHand ? " (by hand)" : ""}`;
      chosen.set(actor, [...(chosen.get(actor) ?? []), text]);
    }
    const tables = this.header.types.map(([name, numbers, kinds], type) => {
      const entities = frame.entities.filter((entity) => entity.type === type);
      const columns = [...numbers, ...kinds.map(([kind]) => kind)];
      return entities.length ? this.table(type, name, columns, entities, before, chosen, selected) : null;
    });
    this.target.replaceChildren(...tables.filter((table) => table !== null));
    if (!frame.entities.length) this.target.append(el("p", { class: "faint" }, "There are no entities in this step."));
  }

  private table(
    type: number,
    name: string,
    columns: string[],
    entities: Entity[],
    before: Map<string, Entity>,
    chosen: Map<number, string[]>,
    selected: number | null,
  ): Node {
    const acts = entities.some(({ position }) => chosen.has(position));
    const cell = (entity: Entity, column: number): number | string => {
      if (column < 0) return entity.name;
      const { numbers, labels } = entity;
      return column < numbers.length ? numbers[column] : labels[column - numbers.length];
    };
    const [by, sign] = this.order.get(type) ?? [NaN, 1];
    const sorted = [...entities];
    if (!Number.isNaN(by)) {
      sorted.sort((a, b) => {
        const [x, y] = [cell(a, by), cell(b, by)];
        return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
      });
    }
    const heads = ["name", ...columns].map((text, i) => {
      const column = i - 1;
      const isSorted = by === column;
      const button = el("button", { type: "button", class: "link" }, named(text), isSorted ? (sign > 0 ? " ▲" : " ▼") : "");
      button.addEventListener("click", () => {
        this.order.set(type, [column, isSorted && sign > 0 ? -1 : 1]);
        this.again();
      });
      const sort = isSorted ? (sign > 0 ? "ascending" : "descending") : undefined;
      return el("th", { scope: "col", "aria-sort": sort }, button);
    });
    if (acts) heads.push(el("th", { scope: "col" }, "chosen"));
    const body = el("tbody");
    const shownRows = this.isLong.has(type) ? sorted : sorted.slice(0, MOST_ROWS);
    for (const entity of shownRows) {
      const button = el("button", { type: "button", class: "link" }, named(entity.name));
      button.addEventListener("click", () => this.select(entity.position));
      const hidden = entity.isVisible ? [] : [el("span", { class: "tag" }, "hidden")];
      const isSelected = entity.position === selected;
      const row = el("tr", { "data-position": entity.position, "aria-current": isSelected ? "true" : undefined });
      row.append(el("th", { scope: "row" }, button, ...hidden));
      const old = before.get(entity.key);
      columns.forEach((_, i) => {
        const value = cell(entity, i);
        const isChanged = old?.type === type && !Object.is(cell(old, i), value);
        const content = typeof value === "number" ? shown(value) : named(value);
        row.append(el("td", { class: isChanged ? "changed" : undefined, "data-value": value }, content));
      });
      if (acts) row.append(el("td", { class: "chosen" }, named((chosen.get(entity.position) ?? []).join(", "))));
      body.append(row);
    }
    const caption = el("caption", {}, named(name), ` (${entities.length})`);
    if (shownRows.length < entities.length) {
      const button = el("button", { type: "button", class: "link" }, "show all");
      button.addEventListener("click", () => {
        this.isLong.add(type);
        this.again();
      });
      caption.append(`, the first ${MOST_ROWS}, `, button);
    }
    return el("table", { class: "list" }, caption, el("thead", {}, el("tr", {}, ...heads)), body);
  }
}
