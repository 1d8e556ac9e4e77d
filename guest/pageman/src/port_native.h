/* What tests do with the native port: an arena in place of a WebAssembly memory. */
#ifndef PAGEMAN_PORT_NATIVE_H
#define PAGEMAN_PORT_NATIVE_H

#include "internal.h"

/* Forgets everything and begins anew with an arena of up to `limit` pages. Of these, `initial` are there at
 * first, and of those the ones from `heap_start` (a number of bytes) on are the linker's heap. */
void native_reset(page_t limit, page_t initial, size_t heap_start);
/* Memory that something else grows. Its first page, or PAGE_NONE. */
page_t native_grow_foreign(page_t pages);
/* Answers of the host to discards: 0, 1 or -1. */
extern int native_discard_status;
/* Shorter discards are declined. */
extern size_t native_discard_min;
/* Growth by more pages than this is refused. */
extern page_t native_growth_max;

#endif
