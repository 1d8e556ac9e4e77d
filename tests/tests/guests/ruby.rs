//! Ruby, a reactor with an interface of its own.

use std::path::Path;

use pagefork::{Caller, Instance, Linker, Memory, Module, Store, WasmValues};
use pagefork_wasi::{OutputKind, OutputPipe, Permissions, WasiCtx, WasiCtxBuilder};

/// A Ruby that evaluates what it is given, as its own JavaScript host runs it.
pub(crate) struct Ruby {
    store: Store<Host>,
    instance: Instance,
    memory: Memory,
    output: OutputPipe,
}

/// An object of Ruby's: the number by which the guest knows it.
#[derive(Clone, Copy)]
pub(crate) struct Value(u32);

/// What the guest's imports work on.
struct Host {
    wasi: WasiCtx,
    /// The values that handles stand for.
    handles: Vec<u32>,
}

impl Ruby {
    /// Starts Ruby; the guest sees `directory` as `/box`.
    pub(crate) fn new(module: &Module, directory: &Path) -> Self {
        let (output, stdout) = OutputKind::pipe();
        let mut builder = WasiCtxBuilder::new();
        builder.arg("ruby").stdout(stdout).stderr(OutputKind::Inherit);
        builder
            .preopened_dir(directory, "/box", Permissions::ReadWrite)
            .expect("a directory to work in");
        let host = Host { wasi: builder.build().expect("a context"), handles: Vec::new() };

        let engine = module.engine();
        let mut linker: Linker<Host> = Linker::new(engine);
        pagefork_wasi::add_to_linker(&mut linker, |host| &mut host.wasi).expect("free names");
        // Of the imports beyond WASI, Ruby without JavaScript needs two: handles
        // for its values. The others are JavaScript, and trap.
        define_handles(&mut linker).expect("free names");
        linker.define_unknown_imports_as_traps(module).expect("free names");
        let extra = module.imports().filter(|import| import.module() != "wasi_snapshot_preview1");
        assert_eq!(extra.count(), 24);

        let mut store = Store::new(engine, host);
        let instance = linker.instantiate(&mut store, module).expect("every import is defined");
        let memory = instance.get_memory(&mut store, "memory").expect("a memory");
        let mut ruby = Self { store, instance, memory, output };
        ruby.call::<(), ()>("_initialize", ());
        ruby.init(&["ruby.wasm", "-EUTF-8", "-e_=0"]);
        ruby
    }

    /// What the guest has written to standard output since the start.
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8(self.output.contents()).expect("text")
    }

    /// Evaluates code: its value, or class and message of the exception that
    /// nothing rescued.
    pub(crate) fn eval(&mut self, code: &str) -> Result<Value, String> {
        let code = self.string(code);
        let result = self.call(
            "rb-eval-string-protect: func(str: string) -> tuple<handle<rb-abi-value>, s32>",
            code,
        );
        self.protected(result)
    }

    /// Calls a method without arguments.
    pub(crate) fn send(&mut self, value: Value, method: &str) -> Result<Value, String> {
        let name = self.string(method);
        let method: u32 = self.call("rb-intern: func(name: string) -> u32", name);
        let receiver = self.handle(value);
        let result = self.call(
            "rb-funcallv-protect: func(recv: handle<rb-abi-value>, mid: u32, args: \
             list<handle<rb-abi-value>>) -> tuple<handle<rb-abi-value>, s32>",
            (receiver, method, 4_u32, 0_u32),
        );
        self.protected(result)
    }

    /// The value as text, by `to_s`.
    pub(crate) fn text(&mut self, value: Value) -> String {
        let string = self.send(value, "to_s").expect("everything has `to_s`");
        let handle = self.handle(string);
        let result: u32 =
            self.call("rstring-ptr: func(value: handle<rb-abi-value>) -> string", handle);
        let [pointer, length] = self.pair(result);
        let mut bytes = vec![0; length as usize];
        self.memory.read(&self.store, pointer as usize, &mut bytes).expect("it is in bounds");
        self.call::<u32, ()>("cabi_post_rstring-ptr", result);
        String::from_utf8(bytes).expect("text")
    }

    fn init(&mut self, args: &[&str]) {
        let list = self.allocate(4, 8 * args.len());
        for (at, arg) in args.iter().enumerate() {
            let (pointer, length) = self.string(arg);
            let words = [pointer.to_le_bytes(), length.to_le_bytes()].concat();
            let place = list as usize + 8 * at;
            self.memory.write(&mut self.store, place, &words).expect("it is in bounds");
        }
        let count = u32::try_from(args.len()).expect("few arguments");
        self.call::<_, ()>("ruby-init: func(args: list<string>) -> ()", (list, count));
    }

    /// The outcome of a protected call: a handle, and how it ended.
    fn protected(&mut self, result: u32) -> Result<Value, String> {
        let [handle, tag] = self.pair(result);
        if tag == 0 {
            return Ok(self.value(handle));
        }
        let handle = self.call("rb-errinfo: func() -> handle<rb-abi-value>", ());
        let error = self.value(handle);
        self.call::<(), ()>("rb-clear-errinfo: func() -> ()", ());
        let class = self.send(error, "class")?;
        let words = [class, error].map(|value| self.text(value));
        Err(words.join(": "))
    }

    /// A string in the guest's memory that ends with a zero: pointer and length.
    fn string(&mut self, text: &str) -> (u32, u32) {
        let bytes = [text.as_bytes(), b"\0"].concat();
        let pointer = self.allocate(1, bytes.len());
        self.memory.write(&mut self.store, pointer as usize, &bytes).expect("it is in bounds");
        (pointer, u32::try_from(bytes.len()).expect("a short text"))
    }

    fn allocate(&mut self, align: u32, size: usize) -> u32 {
        let size = u32::try_from(size).expect("a small size");
        self.call("cabi_realloc", (0_u32, 0_u32, align, size))
    }

    fn pair(&self, at: u32) -> [u32; 2] {
        [0, 4].map(|offset| {
            let mut bytes = [0; 4];
            self.memory.read(&self.store, (at + offset) as usize, &mut bytes).expect("in bounds");
            u32::from_le_bytes(bytes)
        })
    }

    fn handle(&mut self, value: Value) -> u32 {
        insert(&mut self.store.data_mut().handles, value.0)
    }

    fn value(&self, handle: u32) -> Value {
        Value(self.store.data().handles[handle as usize])
    }

    fn call<Params: WasmValues, Results: WasmValues>(
        &mut self,
        name: &str,
        params: Params,
    ) -> Results {
        let function = self
            .instance
            .get_typed_func::<Params, Results>(&mut self.store, name)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        function.call(&mut self.store, params).unwrap_or_else(|error| panic!("{name}: {error:?}"))
    }
}

fn define_handles(linker: &mut Linker<Host>) -> pagefork::Result<()> {
    linker.func_wrap(
        "canonical_abi",
        "resource_new_rb-abi-value",
        |mut caller: Caller<'_, Host>, value: u32| insert(&mut caller.data_mut().handles, value),
    )?;
    linker.func_wrap(
        "canonical_abi",
        "resource_get_rb-abi-value",
        |caller: Caller<'_, Host>, handle: u32| -> pagefork::Result<u32> {
            let value = caller.data().handles.get(handle as usize);
            value.copied().ok_or_else(|| pagefork::Error::msg("no such handle"))
        },
    )?;
    Ok(())
}

fn insert(handles: &mut Vec<u32>, value: u32) -> u32 {
    handles.push(value);
    u32::try_from(handles.len() - 1).expect("few handles")
}
