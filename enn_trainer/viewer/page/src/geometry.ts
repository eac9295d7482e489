/** Maths of the scene: where the world is on the canvas, and outlines of shapes. */

import type { Shape } from "./view.js";

/** Where a part of the world is on the canvas: pixel = offset + scale * coordinate. */
export interface Camera {
  scale: number;
  offsetX: number;
  offsetY: number;
  /** -1 if the second coordinate grows upwards. */
  flip: 1 | -1;
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export type Point = [x: number, y: number];
/** [lowest x, highest x, lowest y, highest y]. */
export type Extent = [number, number, number, number];

export function extentOf(points: Iterable<Point>, before: Extent | null = null): Extent | null {
  let extent = before;
  for (const [x, y] of points) {
    extent ??= [x, x, y, y];
    extent = [Math.min(extent[0], x), Math.max(extent[1], x), Math.min(extent[2], y), Math.max(extent[3], y)];
  }
  return extent;
}

/** Return the camera that shows an extent in a box of the canvas, with a margin. */
export function fitted([x0, x1, y0, y1]: Extent, box: Box, isDown: boolean, margin = 28): Camera {
  const width = x1 - x0 || 1;
  const height = y1 - y0 || 1;
  const room = (pixels: number) => Math.max(pixels - 2 * margin, 20);
  const scale = Math.min(room(box.width) / width, room(box.height) / height);
  const flip = isDown ? 1 : -1;
  return {
    scale,
    flip,
    offsetX: box.x + box.width / 2 - (scale * (x0 + x1)) / 2,
    offsetY: box.y + box.height / 2 - (flip * scale * (y0 + y1)) / 2,
  };
}

export function toPixel(camera: Camera, [x, y]: Point): Point {
  return [camera.offsetX + camera.scale * x, camera.offsetY + camera.flip * camera.scale * y];
}

/** Return the camera after zooming by a factor around a pixel, which stays where it is. */
export function zoomed(camera: Camera, factor: number, [px, py]: Point): Camera {
  return {
    ...camera,
    scale: camera.scale * factor,
    offsetX: px + (camera.offsetX - px) * factor,
    offsetY: py + (camera.offsetY - py) * factor,
  };
}

export function panned(camera: Camera, dx: number, dy: number): Camera {
  return { ...camera, offsetX: camera.offsetX + dx, offsetY: camera.offsetY + dy };
}

/** Return the index of the point nearest to a pixel, within a distance; -1 if there is none. */
export function nearest(points: (Point | null)[], [px, py]: Point, within: number): number {
  let found = -1;
  let least = within;
  points.forEach((point, i) => {
    const distance = point ? Math.hypot(point[0] - px, point[1] - py) : Infinity;
    if (distance < least) [found, least] = [i, distance];
  });
  return found;
}

/** Return the corners of a shape of radius 1 around 0; none for a circle. */
export function outline(shape: Shape): Point[] {
  const regular = (count: number, turn: number, inner = 1): Point[] =>
    Array.from({ length: count }, (_, i) => {
      const angle = (2 * Math.PI * i) / count + turn;
      const radius = i % 2 ? inner : 1;
      return [radius * Math.cos(angle), radius * Math.sin(angle)];
    });
  const up = -Math.PI / 2;
  switch (shape) {
    case "circle":
      return [];
    case "square":
      return regular(4, Math.PI / 4);
    case "triangle":
      return regular(3, up).map(([x, y]) => [x * 1.1, y * 1.1 + 0.15]);
    case "diamond":
      return regular(4, up);
    case "hexagon":
      return regular(6, 0);
    case "pentagon":
      return regular(5, up);
    case "star":
      return regular(10, up, 0.45);
    case "cross": {
      const [a, b] = [0.35, 1];
      return [[-a, -b], [a, -b], [a, -a], [b, -a], [b, a], [a, a], [a, b], [-a, b], [-a, a], [-b, a], [-b, -a], [-a, -a]]; // prettier-ignore
    }
  }
}
