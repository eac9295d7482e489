/** Maths of the scene: where the world is on the canvas, and outlines of shapes. */

import type { Shape } from "./view.js";

/** Where a part of the world is on the canvas: pixel = offset + scale * coordinate; -1 flips what grows upwards. */
export type Camera = { scale: number; offsetX: number; offsetY: number; flip: 1 | -1 };
export type Box = { x: number; y: number; width: number; height: number };
export type Point = [x: number, y: number];
/** [lowest x, highest x, lowest y, highest y]. */
export type Extent = [number, number, number, number];

export function extentOf(points: Point[], before: Extent | null = null): Extent | null {
  const wider = (of: Extent | null, [x, y]: Point): Extent =>
    of ? [Math.min(of[0], x), Math.max(of[1], x), Math.min(of[2], y), Math.max(of[3], y)] : [x, x, y, y];
  return points.reduce(wider, before);
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

export function toWorld(camera: Camera, [px, py]: Point): Point {
  return [(px - camera.offsetX) / camera.scale, (py - camera.offsetY) / (camera.flip * camera.scale)];
}

/** Return the camera after zooming by a factor around a pixel, which stays where it is. */
export function zoomed(camera: Camera, factor: number, [px, py]: Point): Camera {
  const [offsetX, offsetY] = [px + (camera.offsetX - px) * factor, py + (camera.offsetY - py) * factor];
  return { ...camera, scale: camera.scale * factor, offsetX, offsetY };
}

export const panned = (camera: Camera, dx: number, dy: number): Camera =>
  ({ ...camera, offsetX: camera.offsetX + dx, offsetY: camera.offsetY + dy }); // prettier-ignore

/** Return the index of the point nearest to a pixel, within a distance; -1 if there is none. */
export function nearest(points: (Point | null)[], [px, py]: Point, within: number): number {
  const distances = points.map((point) => (point ? Math.hypot(point[0] - px, point[1] - py) : Infinity));
  const least = Math.min(...distances, within);
  return least < within ? distances.indexOf(least) : -1;
}

function regular(count: number, turn: number, inner = 1): Point[] {
  return Array.from({ length: count }, (_, i) => {
    const angle = (2 * Math.PI * i) / count + turn;
    const radius = i % 2 ? inner : 1;
    return [radius * Math.cos(angle), radius * Math.sin(angle)];
  });
}

const UP = -Math.PI / 2;
const ARM = 0.35;
const OUTLINES: Record<Shape, Point[]> = {
  circle: [],
  square: regular(4, Math.PI / 4),
  triangle: regular(3, UP).map(([x, y]) => [x * 1.1, y * 1.1 + 0.15]),
  diamond: regular(4, UP),
  hexagon: regular(6, 0),
  pentagon: regular(5, UP),
  star: regular(10, UP, 0.45),
  cross: [[-ARM, -1], [ARM, -1], [ARM, -ARM], [1, -ARM], [1, ARM], [ARM, ARM], [ARM, 1], [-ARM, 1], [-ARM, ARM], [-1, ARM], [-1, -ARM], [-ARM, -ARM]], // prettier-ignore
};

/** Return the corners of a shape of radius 1 around 0; none for a circle. */
export function outline(shape: Shape): Point[] {
  return OUTLINES[shape];
}
