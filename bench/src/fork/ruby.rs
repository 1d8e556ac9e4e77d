//! Ruby, a reactor: its code is evaluated by calls, and one of them waits for its input.

use pagefork::{
    CallProgress, Caller, Error, Func, Instance, InstancePre, Linker, Memory, Module, Result,
    Store, Val, WasmValues,
};
use pagefork_wasi::{OutputKind, OutputPipe, StdinKind, WasiCtx, WasiCtxBuilder, WasiState};

const SCRIPT: &str = "words = (0..999).map(&:to_s); n = $stdin.gets.to_i; \
    $stdout.puts words[n * 6]; $stdout.flush";
const EVAL: &str = "rb-eval-string-protect: func(str: string) -> tuple<handle<rb-abi-value>, s32>";

/// What the guest's imports work on.
pub(super) struct Host {
    wasi: WasiCtx,
    /// The values that handles stand for.
    handles: Vec<u32>,
}

/// A Ruby that is about to evaluate the script.
struct Ruby {
    store: Store<Host>,
    instance: Instance,
    memory: Memory,
}

/// A Ruby that waits for its input, and is forked.
pub(super) struct Started {
    pre: InstancePre<Host>,
    state: WasiState,
    handles: Vec<u32>,
    builder: WasiCtxBuilder,
}

/// What the script writes, from the start of Ruby.
pub(super) fn from_its_start(module: &Module) -> Vec<u8> {
    let (builder, output) = context(StdinKind::bytes("7\n"));
    let (mut ruby, text) = Ruby::start(module, &builder);
    let eval = ruby.instance.get_typed_func::<(u32, u32), u32>(&mut ruby.store, EVAL);
    eval.and_then(|eval| eval.call(&mut ruby.store, text)).expect("nothing is raised");
    output.contents()
}

impl Started {
    pub(super) fn new(module: &Module) -> Self {
        let (builder, _) = context(StdinKind::Awaited);
        let (Ruby { mut store, instance, .. }, (pointer, length)) = Ruby::start(module, &builder);
        let eval: Func = instance.get_func(&mut store, EVAL).expect("Ruby has it");
        let text = [Val::I32(pointer as i32), Val::I32(length as i32)];
        let progress = eval.call_suspendable(&mut store, &text).expect("nothing is raised");
        assert!(matches!(progress, CallProgress::Suspended), "it reads");
        let state = store.data().wasi.save().expect("nothing else is open");
        let pre = store.snapshot().and_then(|snapshot| snapshot.instance_pre());
        let handles = store.data().handles.clone();
        Self { pre: pre.expect("a snapshot"), state, handles, builder }
    }

    /// What a fork writes.
    pub(super) fn answer(&self) -> Vec<u8> {
        let mut builder = self.builder.clone();
        let (output, stdout) = OutputKind::pipe();
        builder.stdin(StdinKind::bytes("7\n")).stdout(stdout);
        let wasi = builder.restore(&self.state).expect("nothing was open").ctx;
        let host = Host { wasi, handles: self.handles.clone() };
        let (mut store, _) = self.pre.spawn(host).expect("a slot");
        assert!(matches!(store.resume(), Ok(CallProgress::Finished(_))), "nothing is raised");
        output.contents()
    }
}

impl Ruby {
    /// Starts Ruby; the text of the script lies in its memory then.
    fn start(module: &Module, builder: &WasiCtxBuilder) -> (Self, (u32, u32)) {
        let wasi = builder.build().expect("a context");
        let mut linker: Linker<Host> = Linker::new(module.engine());
        pagefork_wasi::add_to_linker(&mut linker, |host| &mut host.wasi).expect("free names");
        define_handles(&mut linker).expect("free names");
        linker.define_unknown_imports_as_traps(module).expect("free names");
        let mut store = Store::new(module.engine(), Host { wasi, handles: Vec::new() });
        let instance = linker.instantiate(&mut store, module).expect("every import is defined");
        let memory = instance.get_memory(&mut store, "memory").expect("a memory");
        let mut ruby = Self { store, instance, memory };
        ruby.call::<(), ()>("_initialize", ());
        let arguments = ["ruby.wasm", "-EUTF-8", "-e_=0"].map(|text| ruby.string(text));
        let list: Vec<u8> = arguments
            .iter()
            .flat_map(|(pointer, length)| [pointer.to_le_bytes(), length.to_le_bytes()].concat())
            .collect();
        let (list, _) = ruby.bytes(4, &list);
        ruby.call::<_, ()>("ruby-init: func(args: list<string>) -> ()", (list, 3_u32));
        let text = ruby.string(SCRIPT);
        (ruby, text)
    }

    /// A string that ends with a zero: where it is, and its length with the zero.
    fn string(&mut self, text: &str) -> (u32, u32) {
        self.bytes(1, &[text.as_bytes(), b"\0"].concat())
    }

    fn bytes(&mut self, align: u32, bytes: &[u8]) -> (u32, u32) {
        let length = bytes.len() as u32;
        let at: u32 = self.call("cabi_realloc", (0_u32, 0_u32, align, length));
        self.memory.write(&mut self.store, at as usize, bytes).expect("it is in bounds");
        (at, length)
    }

    fn call<P: WasmValues, R: WasmValues>(&mut self, name: &str, parameters: P) -> R {
        let function = self.instance.get_typed_func::<P, R>(&mut self.store, name);
        function
            .and_then(|function| function.call(&mut self.store, parameters))
            .expect("it returns")
    }
}

/// A context with that standard input, and what the guest writes to standard output.
fn context(stdin: StdinKind) -> (WasiCtxBuilder, OutputPipe) {
    let (output, stdout) = OutputKind::pipe();
    let mut builder = WasiCtxBuilder::new();
    builder.arg("ruby").stdin(stdin).stdout(stdout);
    (builder, output)
}

/// Without JavaScript, Ruby needs of its host handles for its values.
fn define_handles(linker: &mut Linker<Host>) -> Result<()> {
    let insert = |mut caller: Caller<'_, Host>, value: u32| {
        let handles = &mut caller.data_mut().handles;
        handles.push(value);
        handles.len() as u32 - 1
    };
    let get = |caller: Caller<'_, Host>, handle: u32| -> Result<u32> {
        let value = caller.data().handles.get(handle as usize);
        value.copied().ok_or_else(|| Error::msg("no such handle"))
    };
    linker.func_wrap("canonical_abi", "resource_new_rb-abi-value", insert)?;
    linker.func_wrap("canonical_abi", "resource_get_rb-abi-value", get)?;
    Ok(())
}
