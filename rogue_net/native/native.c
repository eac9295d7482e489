/* The module `rogue_net.native._native`: `blocks.c` for the instructions that this processor has. Its functions
   are called through ctypes; the module itself only says and chooses which instructions these are. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "blocks.h"

static const char *instructions = "any";
static int level = 0, best_level = 0;

#ifdef SEVERAL_INSTRUCTION_SETS
#define BEST(name) (level == 4 ? name##_v4 : level == 3 ? name##_v3 : name##_any)
#else
#define BEST(name) name##_any
#endif
#define EXPORT __attribute__((visibility("default")))

EXPORT int attention_forward(const Frames *f, const float *qkv, const float *gate, float *attention, float *y) {
    return BEST(attention_forward)(f, qkv, gate, attention, y);
}

EXPORT int attention_backward(const Frames *f, const float *qkv, const float *gate, const float *attention,
                              const float *dy, float *dqkv, float *dgate) {
    return BEST(attention_backward)(f, qkv, gate, attention, dy, dqkv, dgate);
}

EXPORT int frame_means(const Frames *f, const float *x, float *means) { return BEST(frame_means)(f, x, means); }

EXPORT int frame_means_backward(const Frames *f, const float *dmeans, float *dx) {
    return BEST(frame_means_backward)(f, dmeans, dx);
}

EXPORT int embed_forward(const Embedding *t, int64_t d, float clip, float *out) {
    return BEST(embed_forward)(t, d, clip, out);
}

EXPORT int embed_backward(const Embedding *t, int64_t d, float clip, const float *dout) {
    return BEST(embed_backward)(t, d, clip, dout);
}

EXPORT int head_forward(const Head *h, int64_t d, const float *x) { return BEST(head_forward)(h, d, x); }

EXPORT int head_backward(const Head *h, int64_t d, const float *x, float *dx) {
    return BEST(head_backward)(h, d, x, dx);
}

EXPORT int memory_forward(const Memory *m) { return BEST(memory_forward)(m); }

EXPORT int memory_backward(const Memory *m) { return BEST(memory_backward)(m); }

EXPORT int64_t blocks_made(const Frames *f) {
    return BEST(blocks_made)(f);
}

EXPORT int blocks_forward(const Frames *f, const float *const *parameters, float *x, float *kept, float *made) {
    return BEST(blocks_forward)(f, parameters, x, kept, made);
}

EXPORT int blocks_backward(const Frames *f, const float *const *parameters, float *const *gradients, float *made,
                           float *dx, float *dkept) {
    return BEST(blocks_backward)(f, parameters, gradients, made, dx, dkept);
}

/* use(level): other instructions than the best ones, as tests do: 4, 3 or 0. More than there are is ignored. */
static PyObject *use(PyObject *self, PyObject *wanted) {
    (void)self;
    long of_test = PyLong_AsLong(wanted);
    if (PyErr_Occurred()) return NULL;
    level = of_test < best_level ? (int)of_test : best_level;
    return PyLong_FromLong(level);
}

static PyMethodDef methods[] = {{"use", use, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
#ifdef SEVERAL_INSTRUCTION_SETS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
        level = 4, instructions = "x86-64-v4";
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        level = 3, instructions = "x86-64-v3";
#endif
    best_level = level;
    PyObject *module = PyModule_Create(&definition);
    if (module && (PyModule_AddStringConstant(module, "instructions", instructions) < 0 ||
                   PyModule_AddStringConstant(module, "source", SOURCE) < 0)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
