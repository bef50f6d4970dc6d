//go:build cgo && linux

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

struct symbol {
	const char *name, *version;
	size_t place;
	int optional;
};

#define NEED(function, version) { "ibv_" #function, version, offsetof(struct orb_library, function), 0 }

// Versions are the first that has the form called here. Without them an old form could answer: get_cq_event, poll
// and post changed between 1.0 and 1.1.
static const struct symbol symbols[] = {
	NEED(get_device_list, "IBVERBS_1.1"),
	NEED(free_device_list, "IBVERBS_1.1"),
	NEED(get_device_guid, "IBVERBS_1.1"),
	NEED(open_device, "IBVERBS_1.1"),
	NEED(close_device, "IBVERBS_1.1"),
	NEED(query_device, "IBVERBS_1.1"),
	NEED(query_port, "IBVERBS_1.1"),
	NEED(get_async_event, "IBVERBS_1.1"),
	NEED(ack_async_event, "IBVERBS_1.1"),
	NEED(alloc_pd, "IBVERBS_1.1"),
	NEED(dealloc_pd, "IBVERBS_1.1"),
	NEED(create_comp_channel, "IBVERBS_1.0"),
	NEED(destroy_comp_channel, "IBVERBS_1.0"),
	NEED(get_cq_event, "IBVERBS_1.1"),
	NEED(ack_cq_events, "IBVERBS_1.1"),
	NEED(create_cq, "IBVERBS_1.1"),
	NEED(destroy_cq, "IBVERBS_1.1"),
	NEED(create_qp, "IBVERBS_1.1"),
	NEED(modify_qp, "IBVERBS_1.1"),
	NEED(query_qp, "IBVERBS_1.1"),
	NEED(destroy_qp, "IBVERBS_1.1"),
	NEED(reg_mr, "IBVERBS_1.1"),
	NEED(dereg_mr, "IBVERBS_1.1"),
	{ "ibv_reg_mr_iova2", "IBVERBS_1.8", offsetof(struct orb_library, reg_mr_iova2), 1 },
	{ "_ibv_query_gid_table", "IBVERBS_1.11", offsetof(struct orb_library, query_gid_table), 1 },
	{ "ibv_reg_dmabuf_mr", "IBVERBS_1.12", offsetof(struct orb_library, reg_dmabuf_mr), 1 },
};

static void *find(void *library, const struct symbol *s)
{
#ifdef __GLIBC__
	return dlvsym(library, s->name, s->version);
#else
	return dlsym(library, s->name); // the default version
#endif
}

static void note(struct orb_load_failure *failure, const struct symbol *s)
{
	const char *text = dlerror();
	snprintf(failure->text, sizeof failure->text, "%s", text != NULL ? text : "the loader gave no reason");
	if (s != NULL) {
		snprintf(failure->symbol, sizeof failure->symbol, "%s", s->name);
		snprintf(failure->version, sizeof failure->version, "%s", s->version);
	}
}

struct orb_library *orb_load(const char *path, struct orb_load_failure *failure)
{
	// Local: its names are no business of the program's other libraries. Providers bring the library by their own
	// dependency. It stays loaded for good: providers cannot be unloaded under open devices.
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL) {
		note(failure, NULL);
		return NULL;
	}
	struct orb_library *l = calloc(1, sizeof *l);
	if (l == NULL) {
		snprintf(failure->text, sizeof failure->text, "no memory");
		dlclose(library);
		return NULL;
	}
	for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
		void *function = find(library, &symbols[i]);
		if (function == NULL && !symbols[i].optional) {
			note(failure, &symbols[i]);
			free(l);
			dlclose(library);
			return NULL;
		}
		memcpy((char *)l + symbols[i].place, &function, sizeof function);
	}
	struct link_map *map = NULL;
	if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL && map->l_name != NULL)
		snprintf(l->path, sizeof l->path, "%s", map->l_name);
	return l;
}

const char *orb_path(const struct orb_library *l) { return l->path; }

int orb_has(const struct orb_library *l)
{
	return (l->reg_mr_iova2 != NULL) | (l->query_gid_table != NULL) << 1 | (l->reg_dmabuf_mr != NULL) << 2;
}
