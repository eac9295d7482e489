// An exported agent in a page or in Node: the arrays of a frame, and the answer of the agent.

const TYPES = { float32: Float32Array, int64: BigInt64Array, bool: Uint8Array };

/**
 * Fill the inputs for one frame.
 * about: interface.json. frame: {entities: {Type: rows}, kinds: {Type: rows}, visible: {Type: flags},
 * global: numbers, actions: {name: {actors, actees, mask, low, high}}}; rows are lists of numbers,
 * positions count the entities of all types in the order of interface.json.
 */
export function arraysOf(ort, about, frame, random = Math.random) {
  const feeds = {};
  for (const [name, { dtype, shape }] of Object.entries(about.inputs)) {
    const [field, key] = name.split(/\/(.*)/s);
    const rows = frame.entities[key] ?? [];
    const action = frame.actions?.[key] ?? {};
    const lengths = {
      frames: 1,
      [`rows of ${key}`]: rows.length,
      [`actors of ${key}`]: action.actors?.length ?? 0,
      [`actees of ${key}`]: action.actees?.length ?? 0,
    };
    // At least one row of everything: no array may be empty. Padded positions are -1.
    const dims = shape.map((dim) => (typeof dim === "number" ? dim : Math.max(1, lengths[dim])));
    const size = dims.reduce((product, dim) => product * dim, 1);
    const values = {
      count: () => [rows.length], // 1. the number of entities of each type, and which are visible
      visible: () => frame.visible?.[key] ?? rows.map(() => 1),
      entities: () => rows, // 2. features
      global: () => frame.global,
      kinds: () => frame.kinds?.[key], // 3. indices of labels
      global_kinds: () => frame.global_kinds,
      actors: () => action.actors, // 4. positions of actors and actees in the frame
      actees: () => action.actees,
      mask: () => action.mask ?? Array(size).fill(1), // 5. the choices that are allowed
      low: () => action.low,
      high: () => action.high,
      uniforms: () => Array.from({ length: size }, () => Math.floor(random() * 2 ** 23) / 2 ** 23), // 6.
      reward: () => [frame.reward ?? 0],
    }[field];
    const data = new TYPES[dtype](size);
    if (field === "actors" || field === "actees") data.fill(-1n);
    const flat = [values?.() ?? []].flat(Infinity).map(Number);
    data.set(dtype === "int64" ? flat.map(BigInt) : flat);
    feeds[name] = new ort.Tensor(dtype, data, dims);
  }
  return feeds;
}

/** Return a function from frames to the outputs, by name; model is the path or content of model.onnx. */
export async function load(ort, about, model) {
  const session = await ort.InferenceSession.create(model);
  return (frame) => session.run(arraysOf(ort, about, frame));
}
