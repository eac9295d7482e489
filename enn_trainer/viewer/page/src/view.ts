/** Places, shapes and colours of entities: from the view in the header, else by names of features. */

import { allTypes, type Header } from "./codec.js";
import { shown } from "./dom.js";
import type { Entity } from "./model.js";

/** A feature: a number, or a kind with its labels. */
type Feature = { number: number } | { kind: number; labels: string[] };

export interface TypeView {
  /** Columns of the position: none to three; -1 for a coordinate that is 0. */
  position: number[];
  /** Columns of an angle, or of a direction. */
  heading: number[];
  /** Half the width in units of the position, or the column that is it. */
  size: number | Feature | null;
  label: Feature[];
  /** Index in `SHAPES`. */
  shape: number;
  /** A colour, a place in the palette, or the feature that gives the place. */
  color: string | number | Feature;
}

export interface View {
  /** By type; what is global is the last one. */
  types: TypeView[];
  /** True if the second coordinate grows downwards. */
  isDown: boolean;
  bounds: [low: number, high: number][] | null;
  axes: string[];
}

export const SHAPES = ["circle", "square", "triangle", "diamond", "hexagon", "star", "cross", "pentagon"] as const;
export type Shape = (typeof SHAPES)[number];

const POSITIONS = [["x", "y"], ["x_pos", "y_pos"], ["pos_x", "pos_y"], ["column", "row"], ["col", "row"]]; // prettier-ignore

/** The JSON of `entity_env.view.View`. */
type GivenView = { y_down?: unknown; bounds?: unknown; entities?: Record<string, Record<string, unknown> | undefined> };

/** Return where and how entities are drawn: the one place that reads the header's view. */
export function viewOf(header: Header): View {
  const given: GivenView = typeof header.view === "object" && header.view !== null ? header.view : {};
  const entities = typeof given.entities === "object" && given.entities !== null ? given.entities : {};
  let isGrid = false;
  let axes: string[] = [];
  const all = allTypes(header);
  const types = all.map(([name, numbers, kinds], i): TypeView => {
    const own = (Object.hasOwn(entities, name) && entities[name]) || {};
    const columns = (names: unknown) => {
      const found = Array.isArray(names) ? names.map((one) => numbers.indexOf(one)) : [];
      return found.includes(-1) ? [] : found;
    };
    const feature = (one: unknown): Feature | null => {
      const [number, kind] = [numbers.indexOf(one as string), kinds.findIndex(([kind]) => kind === one)];
      return number >= 0 ? { number } : kind >= 0 ? { kind, labels: kinds[kind][1] } : null;
    };
    const position = columns(own.position ?? usualPosition(numbers));
    const names = position.map((column) => numbers[column]);
    if (names.length > axes.length) axes = names;
    isGrid ||= names.at(-1) === "row";
    const shape = SHAPES.indexOf(own.shape as Shape);
    const isColor = typeof own.colour === "string" && /^#[0-9a-f]{6}$/i.test(own.colour);
    return {
      position,
      heading: columns(own.heading ?? (numbers.includes("heading") ? ["heading"] : [])),
      size: typeof own.size === "number" ? own.size : feature(own.size),
      label: (Array.isArray(own.label) ? own.label : []).map(feature).filter((one) => one !== null),
      shape: shape >= 0 ? shape : i % SHAPES.length,
      color: isColor ? (own.colour as string) : (feature(own.colour) ?? i),
    };
  });
  // The second coordinate alone is on the second axis.
  types.forEach((type, i) => {
    const [column] = type.position;
    if (type.position.length === 1 && all[i][1][column] === axes[1]) type.position = [-1, column];
  });
  return { types, isDown: given.y_down === undefined ? isGrid : given.y_down === true, bounds: boundsOf(given.bounds), axes };
}

function usualPosition(numbers: string[]): string[] {
  const pair = POSITIONS.find((names) => names.every((name) => numbers.includes(name)));
  if (!pair) return POSITIONS.flat().filter((name) => numbers.includes(name)).slice(0, 1); // prettier-ignore
  const third = pair[0].includes("x") ? pair[0].replace("x", "z") : "";
  return numbers.includes(third) ? [...pair, third] : pair;
}

function boundsOf(bounds: unknown): [number, number][] | null {
  const isPair = (pair: unknown) => Array.isArray(pair) && pair.length === 2 && pair.every(Number.isFinite);
  return Array.isArray(bounds) && bounds.length && bounds.every(isPair) ? bounds : null;
}

/** Return the coordinates of an entity; null if it has none that are finite. */
export function placeOf(view: View, entity: Entity): number[] | null {
  const place = view.types[entity.type].position.map((column) => (column < 0 ? 0 : entity.numbers[column]));
  return place.length > 0 && place.every(Number.isFinite) ? place : null;
}

/** Return the value of a feature: a number or a label. */
export function valueOf(feature: Feature, entity: Entity): number | string {
  return "number" in feature ? entity.numbers[feature.number] : entity.labels[feature.kind];
}

/** Return what stands at an entity: the values of its label features, else its name. */
export function labelOf(view: View, entity: Entity): string {
  const values = view.types[entity.type].label.map((feature) => valueOf(feature, entity));
  return values.map((value) => (typeof value === "number" ? shown(value) : value)).join(" ") || entity.name;
}

/** Return which agents do not see a column of a type (numbers, then kinds), or all of it where the column is null. */
export function unseenBy({ unseen }: Header, type: number, column: number | null): string[] {
  const isUnseen = (who: "agent" | "beside") =>
    unseen?.[who]?.some(([of, columns]) => of === type && (column === null ? columns === null : columns?.includes(column)));
  return [...(isUnseen("agent") ? ["the agent"] : []), ...(isUnseen("beside") ? ["the other agent"] : [])];
}

/** Return the colour of an entity, or its place in a palette. */
export function colorOf({ color }: TypeView, entity: Entity): string | number {
  if (typeof color !== "object") return color;
  if ("labels" in color) return Math.max(color.labels.indexOf(entity.labels[color.kind]), 0);
  const value = Math.round(entity.numbers[color.number]);
  return Number.isFinite(value) ? Math.abs(value) : 0;
}

/** Return the angle of an entity, anticlockwise from the first axis; nan if it has none. */
export function headingOf({ heading }: TypeView, entity: Entity): number {
  const [x, y] = heading.map((column) => entity.numbers[column]);
  return heading.length === 2 ? Math.atan2(y, x) : (x ?? NaN);
}
