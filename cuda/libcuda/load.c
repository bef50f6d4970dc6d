//go:build cgo && linux

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

struct symbol {
	const char *name;
	size_t place;
	int optional;
};

#define NEED(function) { #function, offsetof(struct orbcu_driver, function), 0 },
#define MAY(function) { #function, offsetof(struct orbcu_driver, function), 1 },

// The driver has no symbol versions: a name's ending is its version, and a name never changes its meaning.
static const struct symbol symbols[] = { ORBCU_CALLS(NEED, MAY) };

_Static_assert(sizeof symbols / sizeof symbols[0] == ORBCU_CALLS_COUNT, "each call has a row");

static int find(void *library, struct orbcu_driver *l, int call)
{
	void *function = dlsym(library, symbols[call].name);
	memcpy((char *)l + symbols[call].place, &function, sizeof function);
	return function != NULL || symbols[call].optional;
}

static void words(struct orbcu_load_failure *failure, int what)
{
	const char *text = dlerror();
	failure->what = what;
	snprintf(failure->text, sizeof failure->text, "%s", text != NULL ? text : "the loader gave no reason");
}

static int lacks(struct orbcu_load_failure *failure, int call)
{
	words(failure, ORBCU_NO_SYMBOL);
	snprintf(failure->symbol, sizeof failure->symbol, "%s", symbols[call].name);
	return 0;
}

static int refused(const struct orbcu_driver *l, struct orbcu_load_failure *failure, uint32_t result, int call)
{
	const char *name = l->cuGetErrorName != NULL ? orbcu_result_name(l, result) : NULL;
	failure->what = ORBCU_REFUSED;
	failure->done = orbcu_done(result, call);
	failure->done.effect = ORBCU_NONE;
	snprintf(failure->result, sizeof failure->result, "%s", name != NULL ? name : "");
	return 0;
}

// check finds the functions. The version comes first: an old driver is told from one that lacks something.
static int check(void *library, struct orbcu_driver *l, int least, struct orbcu_load_failure *failure)
{
	for (int call = ORBCU_cuDriverGetVersion; call <= ORBCU_cuGetErrorName; call++)
		if (!find(library, l, call))
			return lacks(failure, call);
	uint32_t result = l->cuDriverGetVersion(&l->version);
	failure->version = l->version;
	if (result != 0)
		return refused(l, failure, result, ORBCU_cuDriverGetVersion);
	if (l->version < least) {
		failure->what = ORBCU_TOO_OLD;
		return 0;
	}
	for (int call = 0; call < ORBCU_CALLS_COUNT; call++)
		if (!find(library, l, call))
			return lacks(failure, call);
	return 1;
}

// start initialises the driver. No context appears by it.
static int start(struct orbcu_driver *l, struct orbcu_load_failure *failure)
{
	int count = 0;
	uint32_t result = l->cuInit(0);
	if (result != 0)
		return refused(l, failure, result, ORBCU_cuInit);
	result = l->cuDeviceGetCount(&count);
	if (result != 0)
		return refused(l, failure, result, ORBCU_cuDeviceGetCount);
	if (count > 0)
		return 1;
	refused(l, failure, ORB_CUDA_ERROR_NO_DEVICE, ORBCU_cuDeviceGetCount);
	return 0;
}

// drivers are those that work, newest first; they stay. The lock is held through cuInit, so that a driver is one.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct orbcu_driver *drivers;

static struct orbcu_driver *open_driver(const char *path, int least, struct orbcu_load_failure *failure)
{
	// Local: its names are no business of the program's other libraries. It stays loaded for good once it was
	// initialised: it has threads.
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL) {
		words(failure, ORBCU_NO_LIBRARY);
		return NULL;
	}
	struct orbcu_driver *l = drivers;
	while (l != NULL && l->library != library)
		l = l->next;
	if (l != NULL) {
		dlclose(library);
		return l;
	}
	l = calloc(1, sizeof *l);
	if (l == NULL) {
		failure->what = ORBCU_NO_LIBRARY;
		snprintf(failure->text, sizeof failure->text, "no memory");
		dlclose(library);
		return NULL;
	}
	struct link_map *map = NULL;
	if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL && map->l_name != NULL)
		snprintf(l->path, sizeof l->path, "%s", map->l_name);
	memcpy(failure->path, l->path, sizeof failure->path);
	if (!check(library, l, least, failure)) {
		free(l);
		dlclose(library);
		return NULL;
	}
	if (!start(l, failure)) {
		free(l);
		return NULL;
	}
	l->library = library;
	l->next = drivers;
	drivers = l;
	return l;
}

struct orbcu_driver *orbcu_load(const char *path, int least, struct orbcu_load_failure *failure)
{
	pthread_mutex_lock(&lock);
	struct orbcu_driver *l = open_driver(path, least, failure);
	pthread_mutex_unlock(&lock);
	return l;
}

const char *orbcu_path(const struct orbcu_driver *l) { return l->path; }

int orbcu_version(const struct orbcu_driver *l) { return l->version; }

const char *orbcu_call_name(int call) { return symbols[call].name; }

const char *orbcu_result_name(const struct orbcu_driver *l, uint32_t result)
{
	const char *name = NULL;
	return l->cuGetErrorName((orb_cu_result)result, &name) == 0 ? name : NULL;
}
