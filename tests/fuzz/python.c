/* Python under libFuzzer: the interpreter is inside, and the lines of our own packages that follow
 * each other count as the edges of C do. What is run is the function of targets.py that the program
 * is named after. The C decoder is inside as well, for targets.py to compare. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../conformance/verdict.h"
#include "fuzz.h"

#define EDGES (1u << 16)
#define CODES (1u << 13) /* functions */

__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t edges[EDGES];

static struct {
	PyCodeObject *code; /* referenced, so that the place is not another's later */
	uint32_t sum;	    /* 0 = not ours */
} codes[CODES];
static PyObject *target;

const char *__asan_default_options(void);

/* The interpreter keeps what it has until the end. */
const char *__asan_default_options(void)
{
	return "detect_leaks=0";
}

static uint32_t add_up(uint32_t sum, const char *text)
{
	while (*text)
		sum = (sum ^ (uint8_t)*text++) * 0x01000193;
	return sum;
}

/* A number of a function that is the same in each run; 0 when it is none of our packages. */
static uint32_t sum_of(PyCodeObject *code)
{
	size_t i = ((uintptr_t)code >> 4) % CODES;
	const char *file;

	for (; codes[i].code != code; i = (i + 1) % CODES) {
		if (codes[i].code)
			continue;
		codes[i].code = (PyCodeObject *)Py_NewRef((PyObject *)code);
		file = PyUnicode_AsUTF8(code->co_filename);
		file = file ? strstr(file, "/clients/") : NULL;
		if (file)
			codes[i].sum = add_up((uint32_t)code->co_firstlineno, file) | 1;
		break;
	}
	return codes[i].sum;
}

static int count(PyObject *unused, PyFrameObject *frame, int what, PyObject *argument)
{
	static uint32_t before;
	PyCodeObject *code;
	uint32_t sum;

	(void)unused;
	(void)argument;
	if (what != PyTrace_LINE)
		return 0;
	code = PyFrame_GetCode(frame);
	sum = sum_of(code);
	Py_DECREF(code);
	if (!sum)
		return 0;
	sum = (sum + (uint32_t)PyFrame_GetLineNumber(frame)) * 0x9e3779b1;
	edges[(before ^ sum >> 8) % EDGES] += edges[(before ^ sum >> 8) % EDGES] < 255;
	before = sum >> 9;
	return 0;
}

/* told(topic, body): what the C decoder says of it. */
static PyObject *told(PyObject *module, PyObject *arguments)
{
	struct json out = { 0 };
	const char *topic, *body;
	Py_ssize_t length;
	struct input in;
	size_t size;
	uint8_t *copy;
	PyObject *text;

	(void)module;
	if (!PyArg_ParseTuple(arguments, "sy#", &topic, &body, &length))
		return NULL;
	size = (size_t)length;
	in = (struct input){ (const uint8_t *)body, size };
	copy = take_block(&in, &size);
	add_verdict(&out, topic, copy, size);
	text = PyUnicode_DecodeUTF8(out.data, (Py_ssize_t)out.length, NULL);
	json_free(&out);
	free(copy);
	return text;
}

static PyObject *decoder_module(void)
{
	static PyMethodDef methods[] = { { "told", told, METH_VARARGS, NULL }, { 0 } };
	static struct PyModuleDef module = { PyModuleDef_HEAD_INIT, .m_name = "c_decoder",
					     .m_methods = methods };

	return PyModule_Create(&module);
}

static void must(bool good)
{
	if (good)
		return;
	PyErr_Print();
	abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	PyObject *targets, *path;
	PyConfig config;

	(void)argc;
	PyImport_AppendInittab("c_decoder", decoder_module);
	PyConfig_InitIsolatedConfig(&config);
	config.use_hash_seed = 1; /* the same ways in each run */
	PyConfig_SetString(&config, &config.program_name, L"/usr/bin/python3");
	MUST(!PyStatus_Exception(Py_InitializeFromConfig(&config)));
	PyConfig_Clear(&config);
	path = PyUnicode_FromString("tests/fuzz");
	must(path && !PyList_Insert(PySys_GetObject("path"), 0, path));
	Py_DECREF(path);
	targets = PyImport_ImportModule("targets");
	must(targets);
	target = PyObject_GetAttrString(targets, strrchr((*argv)[0], '_') + 1);
	must(target);
	PyEval_SetTrace(count, NULL);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	PyObject *result = PyObject_CallFunction(target, "y#", data, (Py_ssize_t)size);

	must(result);
	Py_DECREF(result);
	return 0;
}
