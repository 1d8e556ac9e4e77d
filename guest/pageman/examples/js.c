/* Runs JavaScript from standard input by QuickJS. What it knows beside the language is console.log and print. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quickjs.h"

static JSValue print(JSContext *context, JSValueConst this, int count, JSValueConst *values) {
    (void)this;
    for (int i = 0; i < count; i++) {
        const char *text = JS_ToCString(context, values[i]);
        if (!text) return JS_EXCEPTION;
        printf("%s%s", i ? " " : "", text);
        JS_FreeCString(context, text);
    }
    putchar('\n');
    return JS_UNDEFINED;
}

static char *read_all(FILE *file, size_t *length) {
    size_t capacity = 4096;
    char *text = malloc(capacity + 1);
    for (*length = 0; text;) {
        *length += fread(text + *length, 1, capacity - *length, file);
        if (*length < capacity) break;
        capacity *= 2;
        text = realloc(text, capacity + 1);
    }
    if (!text) {
        fputs("js: there is no memory for the script\n", stderr);
        exit(1);
    }
    text[*length] = 0;
    return text;
}

int main(void) {
    size_t length;
    char *script = read_all(stdin, &length);
    JSRuntime *runtime = JS_NewRuntime();
    JSContext *context = runtime ? JS_NewContext(runtime) : NULL;
    if (!context) {
        fputs("js: there is no memory\n", stderr);
        return 1;
    }
    JSValue global = JS_GetGlobalObject(context), console = JS_NewObject(context);
    JS_SetPropertyStr(context, console, "log", JS_NewCFunction(context, print, "log", 0));
    JS_SetPropertyStr(context, global, "console", console);
    JS_SetPropertyStr(context, global, "print", JS_NewCFunction(context, print, "print", 0));
    JS_FreeValue(context, global);

    JSValue result = JS_Eval(context, script, length, "script", JS_EVAL_TYPE_GLOBAL);
    int failed = JS_IsException(result);
    if (failed) {
        JSValue exception = JS_GetException(context);
        const char *text = JS_ToCString(context, exception);
        fprintf(stderr, "js: %s\n", text ? text : "an exception");
        JS_FreeCString(context, text);
        JS_FreeValue(context, exception);
    }
    JS_FreeValue(context, result);
    JS_FreeContext(context);
    JS_FreeRuntime(runtime);
    free(script);
    return failed;
}
