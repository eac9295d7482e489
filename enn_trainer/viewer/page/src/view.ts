/** Places, shapes and colours of entities: from the view in the header, else by names of features. */

import type { Header } from "./codec.js";
import type { Entity } from "./model.js";

export interface TypeView {
  /** Columns of the position: none, two or three. */
  position: number[];
  heading: number | null;
  size: number | null;
  label: number | null;
  /** Index in `SHAPES`. */
  shape: number;
  /** Index in the palette, or a colour. */
  color: number | string;
}

export interface View {
  /** By type; what is global is the last one. */
  types: TypeView[];
  /** True if the second coordinate grows downwards. */
  isDown: boolean;
  bounds: [low: number, high: number][] | null;
  axes: string[];
}

export const SHAPES = ["circle", "square", "triangle", "diamond", "hexagon", "star", "plus", "pentagon"] as const;
export type Shape = (typeof SHAPES)[number];

const PAIRS = [
  ["x", "y"],
  ["x_pos", "y_pos"],
  ["pos_x", "pos_y"],
  ["px", "py"],
  ["position_x", "position_y"],
  ["column", "row"],
  ["col", "row"],
];

/** A view as `entity_env/view.py` may say it; whatever does not fit is left to the names. */
interface GivenView {
  up?: unknown;
  bounds?: unknown;
  entities?: Record<string, Record<string, unknown> | undefined>;
}

/** Return where and how entities are drawn. The one place that reads the header's view. */
export function viewOf(header: Header): View {
  const given: GivenView = typeof header.view === "object" && header.view !== null ? header.view : {};
  const all: [string, string[]][] = header.types.map(([name, numbers]) => [name, numbers]);
  all.push(["__global__", header.global[0]]);
  let isGrid = false;
  let axes = ["x", "y"];
  const types = all.map(([name, numbers], i): TypeView => {
    const own = Object.hasOwn(given.entities ?? {}, name) ? given.entities![name]! : {};
    const column = (feature: unknown) => (typeof feature === "string" && numbers.includes(feature) ? numbers.indexOf(feature) : null);
    let names = Array.isArray(own.position) ? own.position : PAIRS.find((pair) => pair.every((one) => numbers.includes(one)));
    if (names && !Array.isArray(own.position)) {
      const third = names[0].includes("x") ? names[0].replace("x", "z") : "";
      if (numbers.includes(third)) names = [...names, third];
    }
    const position = (names ?? []).map(column);
    const isWhole = position.length >= 2 && position.every((one) => one !== null);
    if (isWhole) {
      isGrid ||= names![1] === "row";
      axes = names as string[];
    }
    const shape = SHAPES.indexOf(own.shape as Shape);
    return {
      position: isWhole ? (position as number[]) : [],
      heading: column(own.heading ?? "heading"),
      size: column(own.size),
      label: column(own.label),
      shape: shape >= 0 ? shape : i % SHAPES.length,
      color: typeof own.color === "string" ? own.color : i,
    };
  });
  const isDown = given.up === undefined ? isGrid : given.up === "down";
  return { types, isDown, bounds: boundsOf(given.bounds), axes };
}

function boundsOf(bounds: unknown): [number, number][] | null {
  const isPair = (pair: unknown) => Array.isArray(pair) && pair.length === 2 && pair.every(Number.isFinite);
  return Array.isArray(bounds) && bounds.length >= 2 && bounds.every(isPair) ? bounds : null;
}

/** Return the coordinates of an entity; null if it has none that are finite. */
export function placeOf(view: View, entity: Entity): number[] | null {
  const { position } = view.types[entity.type];
  const place = position.map((column) => entity.numbers[column]);
  return place.length > 0 && place.every(Number.isFinite) ? place : null;
}
