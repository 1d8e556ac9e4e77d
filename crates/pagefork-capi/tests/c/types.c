/* Types and their vectors: what they say, and that copies are their own. */

#include "check.h"

static wasm_name_t name(const char *text) {
  wasm_name_t name;
  wasm_name_new_from_string(&name, text);
  return name;
}

static void value_types(void) {
  const wasm_valkind_t kinds[] = {WASM_I32, WASM_I64, WASM_F32, WASM_F64, WASM_EXTERNREF,
                                  WASM_FUNCREF};
  wasm_valtype_t *types[] = {wasm_valtype_new_i32(),       wasm_valtype_new_i64(),
                             wasm_valtype_new_f32(),       wasm_valtype_new_f64(),
                             wasm_valtype_new_externref(), wasm_valtype_new_funcref()};
  for (size_t i = 0; i < 6; i++) {
    wasm_valtype_t *copy = wasm_valtype_copy(types[i]);
    wasm_valtype_delete(types[i]);
    CHECK(wasm_valtype_kind(copy) == kinds[i]);
    CHECK(wasm_valtype_is_num(copy) == (i < 4) && wasm_valtype_is_ref(copy) == (i >= 4));
    CHECK(wasm_valkind_is_num(kinds[i]) == (i < 4) && wasm_valkind_is_ref(kinds[i]) == (i >= 4));
    wasm_valtype_delete(copy);
  }
  CHECK(!wasm_valtype_new(77));
  wasm_valtype_delete(NULL);
}

/* Each shorthand makes a type with so many parameters and results. */
static void function_types(void) {
#define I wasm_valtype_new_i32()
#define F wasm_valtype_new_f64()
  wasm_functype_t *types[3][4] = {
      {wasm_functype_new_0_0(), wasm_functype_new_1_0(I), wasm_functype_new_2_0(I, I),
       wasm_functype_new_3_0(I, I, I)},
      {wasm_functype_new_0_1(F), wasm_functype_new_1_1(I, F), wasm_functype_new_2_1(I, I, F),
       wasm_functype_new_3_1(I, I, I, F)},
      {wasm_functype_new_0_2(F, F), wasm_functype_new_1_2(I, F, F),
       wasm_functype_new_2_2(I, I, F, F), wasm_functype_new_3_2(I, I, I, F, F)},
  };
  for (size_t results = 0; results < 3; results++) {
    for (size_t params = 0; params < 4; params++) {
      wasm_functype_t *type = wasm_functype_copy(types[results][params]);
      wasm_functype_delete(types[results][params]);
      const wasm_valtype_vec_t *list = wasm_functype_params(type);
      CHECK(list->size == params);
      for (size_t i = 0; i < params; i++) CHECK(wasm_valtype_kind(list->data[i]) == WASM_I32);
      list = wasm_functype_results(type);
      CHECK(list->size == results);
      for (size_t i = 0; i < results; i++) CHECK(wasm_valtype_kind(list->data[i]) == WASM_F64);
      wasm_functype_delete(type);
    }
  }
  wasm_valtype_t *with_null[] = {NULL};
  wasm_valtype_vec_t params, results;
  wasm_valtype_vec_new(&params, 1, with_null);
  wasm_valtype_vec_new_empty(&results);
  CHECK(!wasm_functype_new(&params, &results));
}

static void other_types(void) {
  wasm_globaltype_t *global = wasm_globaltype_new(wasm_valtype_new_i64(), WASM_VAR), *global2;
  global2 = wasm_globaltype_copy(global);
  wasm_globaltype_delete(global);
  CHECK(wasm_valtype_kind(wasm_globaltype_content(global2)) == WASM_I64);
  CHECK(wasm_globaltype_mutability(global2) == WASM_VAR);
  CHECK(!wasm_globaltype_new(wasm_valtype_new_i64(), 9));
  CHECK(!wasm_globaltype_new(NULL, WASM_CONST));

  wasm_limits_t limits = {3, 7}, open = {1, wasm_limits_max_default};
  wasm_tabletype_t *table = wasm_tabletype_new(wasm_valtype_new_funcref(), &limits), *table2;
  table2 = wasm_tabletype_copy(table);
  wasm_tabletype_delete(table);
  CHECK(wasm_valtype_kind(wasm_tabletype_element(table2)) == WASM_FUNCREF);
  CHECK(wasm_tabletype_limits(table2)->min == 3 && wasm_tabletype_limits(table2)->max == 7);
  CHECK(!wasm_tabletype_new(wasm_valtype_new_i32(), &limits));

  wasm_memorytype_t *memory = wasm_memorytype_new(&open), *memory2;
  memory2 = wasm_memorytype_copy(memory);
  wasm_memorytype_delete(memory);
  CHECK(wasm_memorytype_limits(memory2)->min == 1);
  CHECK(wasm_memorytype_limits(memory2)->max == wasm_limits_max_default);
  CHECK(!wasm_memorytype_new(NULL));

  wasm_functype_t *func = wasm_functype_new_0_0();

  /* Each kind is taken for the general one and back, and for no other. */
#define KINDS(name, kind, object)                                                               \
  do {                                                                                          \
    wasm_externtype_t *general = wasm_##name##_as_externtype(object);                           \
    const wasm_externtype_t *constant = wasm_##name##_as_externtype_const(object);              \
    CHECK(wasm_externtype_kind(general) == kind && wasm_externtype_kind(constant) == kind);     \
    CHECK((wasm_externtype_as_functype(general) != NULL) == (kind == WASM_EXTERN_FUNC));        \
    CHECK((wasm_externtype_as_globaltype(general) != NULL) == (kind == WASM_EXTERN_GLOBAL));    \
    CHECK((wasm_externtype_as_tabletype(general) != NULL) == (kind == WASM_EXTERN_TABLE));      \
    CHECK((wasm_externtype_as_memorytype(general) != NULL) == (kind == WASM_EXTERN_MEMORY));    \
    CHECK(wasm_externtype_as_##name(general) == object);                                        \
    CHECK(wasm_externtype_as_##name##_const(constant) == object);                               \
    wasm_externtype_t *copy = wasm_externtype_copy(general);                                    \
    CHECK(wasm_externtype_kind(copy) == kind);                                                  \
    wasm_externtype_delete(copy);                                                               \
  } while (0)
  KINDS(functype, WASM_EXTERN_FUNC, func);
  KINDS(globaltype, WASM_EXTERN_GLOBAL, global2);
  KINDS(tabletype, WASM_EXTERN_TABLE, table2);
  KINDS(memorytype, WASM_EXTERN_MEMORY, memory2);

  /* What is no function has no parameters. */
  CHECK(!wasm_functype_params((const wasm_functype_t *)memory2));
  CHECK(!wasm_memorytype_limits((const wasm_memorytype_t *)table2));
  CHECK(!wasm_tabletype_element((const wasm_tabletype_t *)global2));

  wasm_name_t first = name("host"), second = name("f"), third = name("run");
  wasm_importtype_t *import =
      wasm_importtype_new(&first, &second, wasm_functype_as_externtype(func));
  wasm_importtype_t *import2 = wasm_importtype_copy(import);
  wasm_importtype_delete(import);
  CHECK(!first.size && !first.data && !second.size);
  CHECK(wasm_importtype_module(import2)->size == 4 && wasm_importtype_name(import2)->size == 1);
  CHECK(wasm_externtype_kind(wasm_importtype_type(import2)) == WASM_EXTERN_FUNC);
  wasm_exporttype_t *export =
      wasm_exporttype_new(&third, wasm_memorytype_as_externtype(memory2));
  wasm_exporttype_t *export2 = wasm_exporttype_copy(export);
  wasm_exporttype_delete(export);
  CHECK(memcmp(wasm_exporttype_name(export2)->data, "run", 3) == 0);
  CHECK(wasm_externtype_kind(wasm_exporttype_type(export2)) == WASM_EXTERN_MEMORY);
  wasm_name_t lost = name("lost");
  CHECK(!wasm_exporttype_new(&lost, NULL));

  wasm_importtype_delete(import2);
  wasm_exporttype_delete(export2);
  wasm_globaltype_delete(global2);
  wasm_tabletype_delete(table2);
}

/* Vectors of pointers: taken over, copied with their elements, and deleted with them. */
#define VECTOR(name, make)                                                                      \
  static void vector_of_##name(void) {                                                          \
    wasm_##name##_t *array[2] = {make, make};                                                   \
    wasm_##name##_vec_t vec, copy;                                                              \
    wasm_##name##_vec_new(&vec, 2, array);                                                      \
    CHECK(vec.size == 2 && vec.data != array && vec.data[0] == array[0]);                       \
    wasm_##name##_vec_copy(&copy, &vec);                                                        \
    CHECK(copy.size == 2 && copy.data[0] && copy.data[0] != vec.data[0]);                       \
    wasm_##name##_vec_delete(&vec);                                                             \
    CHECK(vec.size == 0 && !vec.data);                                                          \
    wasm_##name##_vec_delete(&vec);                                                             \
    wasm_##name##_vec_delete(&copy);                                                            \
    wasm_##name##_vec_new_uninitialized(&vec, 3);                                               \
    CHECK(vec.size == 3 && !vec.data[0] && !vec.data[2]);                                       \
    vec.data[1] = make;                                                                         \
    wasm_##name##_vec_copy(&copy, &vec);                                                        \
    CHECK(!copy.data[0] && copy.data[1]);                                                       \
    wasm_##name##_vec_delete(&vec);                                                             \
    wasm_##name##_vec_delete(&copy);                                                            \
    wasm_##name##_vec_new_empty(&vec);                                                          \
    CHECK(vec.size == 0 && !vec.data);                                                          \
    wasm_##name##_vec_new(&vec, 0, NULL);                                                       \
    CHECK(vec.size == 0 && !vec.data);                                                          \
    wasm_##name##_vec_new(&vec, 2, NULL);                                                       \
    CHECK(vec.size == 0 && !vec.data);                                                          \
    wasm_##name##_vec_delete(NULL);                                                             \
    wasm_##name##_vec_new_uninitialized(&vec, SIZE_MAX / 2);                                    \
    CHECK(vec.size == 0 && !vec.data);                                                          \
  }

static const wasm_limits_t one = {1, 1};

static wasm_importtype_t *make_import(void) {
  wasm_name_t module = name("m"), own = name("n");
  return wasm_importtype_new(&module, &own,
                             wasm_memorytype_as_externtype(wasm_memorytype_new(&one)));
}

static wasm_exporttype_t *make_export(void) {
  wasm_name_t own = name("n");
  return wasm_exporttype_new(&own, wasm_memorytype_as_externtype(wasm_memorytype_new(&one)));
}

VECTOR(valtype, wasm_valtype_new(WASM_F32))
VECTOR(functype, wasm_functype_new_1_1(wasm_valtype_new_i32(), wasm_valtype_new_i64()))
VECTOR(globaltype, wasm_globaltype_new(wasm_valtype_new_i32(), WASM_CONST))
VECTOR(tabletype, wasm_tabletype_new(wasm_valtype_new_externref(), &one))
VECTOR(memorytype, wasm_memorytype_new(&one))
VECTOR(externtype, wasm_memorytype_as_externtype(wasm_memorytype_new(&one)))
VECTOR(importtype, make_import())
VECTOR(exporttype, make_export())

static void bytes(void) {
  wasm_byte_vec_t vec, copy;
  wasm_byte_vec_new(&vec, 3, "abc");
  wasm_byte_vec_copy(&copy, &vec);
  wasm_byte_vec_delete(&vec);
  CHECK(copy.size == 3 && memcmp(copy.data, "abc", 3) == 0);
  wasm_byte_vec_delete(&copy);
  wasm_byte_vec_new_uninitialized(&vec, 5);
  CHECK(vec.size == 5 && vec.data);
  wasm_byte_vec_delete(&vec);
  wasm_byte_vec_new_empty(&vec);
  CHECK(vec.size == 0);
  wasm_name_new_from_string_nt(&vec, "xy");
  CHECK(vec.size == 3 && vec.data[2] == 0);
  wasm_name_delete(&vec);
  wasm_byte_vec_t malformed = {3, NULL};
  wasm_byte_vec_copy(&copy, &malformed);
  CHECK(copy.size == 0 && !copy.data);
}

int main(void) {
  value_types();
  function_types();
  other_types();
  vector_of_valtype();
  vector_of_functype();
  vector_of_globaltype();
  vector_of_tabletype();
  vector_of_memorytype();
  vector_of_externtype();
  vector_of_importtype();
  vector_of_exporttype();
  bytes();
  puts("ok");
  return 0;
}
