//! The runner, which executes directives and reports failures.

use std::collections::HashMap;

use pagefork::{
    Engine, Error, ErrorKind, Extern, Func, Instance, Linker, Module, Store, Trap, Val,
};
use wast::lexer::Lexer;
use wast::parser::{self, ParseBuffer};
use wast::token::{Id, Span};
use wast::{QuoteWat, Wast, WastDirective, WastExecute, WastInvoke, Wat};

use crate::{spectest, value};

/// Runs scripts, one after the other, in one store.
pub struct WastRunner {
    world: World,
    /// Module definitions by name. The latest one is also without a name.
    definitions: HashMap<Option<String>, Module>,
    call: Box<ScriptCall>,
    before: Option<Box<Before>>,
    /// Names whose latest instance failed, with the line of its module.
    missing: HashMap<Option<String>, usize>,
    /// The line of the refused module to which the present directive refers.
    about: Option<usize>,
}

/// The instances that a script has made so far.
pub struct World {
    /// The store of all instances.
    pub store: Store<()>,
    /// The imports of modules: `spectest`, and the instances that were registered.
    pub linker: Linker<()>,
    /// Instances by name. The latest one is also without a name.
    pub instances: HashMap<Option<String>, Instance>,
}

/// What happens before each directive.
type Before = dyn FnMut(&mut World);

/// How functions of a world are called, with arguments of their types.
type ScriptCall = dyn FnMut(&mut World, &Func, &[Val]) -> Result<Vec<Val>, Error>;

/// The result of a script.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The count of directives that passed.
    pub passed: usize,
    /// The directives that failed, in the order of the script.
    pub failures: Vec<ScriptFailure>,
}

/// A directive that failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}:{line}: {message}")]
pub struct ScriptFailure {
    /// The script's name.
    pub file: String,
    /// The directive's line, from 1.
    pub line: usize,
    /// The expected result and the actual one.
    pub message: String,
    /// The line of the module to which it refers, if that module was refused.
    pub about: Option<usize>,
}

/// A script that cannot be run at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// The file is not a script.
    #[error("{0}")]
    Syntax(#[from] wast::Error),
    /// The module `spectest` could not be made.
    #[error("cannot define the module spectest: {0}")]
    Spectest(Error),
}

impl WastRunner {
    /// A runner whose scripts may import `spectest` and what they register.
    ///
    /// # Errors
    /// If an export of `spectest` cannot be made.
    pub fn new(engine: &Engine) -> Result<Self, ScriptError> {
        let mut store = Store::new(engine, ());
        let mut linker = spectest::linker(engine).map_err(ScriptError::Spectest)?;
        // Scripts register a name more than once.
        linker.allow_shadowing(true);
        spectest::define(&mut linker, &mut store).map_err(ScriptError::Spectest)?;
        let world = World { store, linker, instances: HashMap::new() };
        let call = |world: &mut World, function: &Func, arguments: &[Val]| {
            let mut results = vec![Val::I32(0); function.ty(&world.store).results.len()];
            function.call(&mut world.store, arguments, &mut results)?;
            Ok(results)
        };
        Ok(Self {
            world,
            definitions: HashMap::new(),
            call: Box::new(call),
            before: None,
            missing: HashMap::new(),
            about: None,
        })
    }

    /// Makes the calls of scripts by `call` instead of [`Func::call`]. It may replace the whole
    /// world by another one in which the script can go on.
    pub fn call_by(
        &mut self,
        call: impl FnMut(&mut World, &Func, &[Val]) -> Result<Vec<Val>, Error> + 'static,
    ) {
        self.call = Box::new(call);
    }

    /// Has this done before each directive. It may replace the whole world by another one in which
    /// the script can go on.
    pub fn before_each(&mut self, before: impl FnMut(&mut World) + 'static) {
        self.before = Some(Box::new(before));
    }

    /// Executes every directive of `script`. `file` is its name in the report.
    ///
    /// # Errors
    /// If `script` does not follow the grammar of scripts. A module in it that does not follow
    /// the grammar of modules is a failure of its directive.
    pub fn run(&mut self, file: &str, script: &str) -> Result<Report, ScriptError> {
        let located = |mut error: wast::Error| {
            error.set_path(file.as_ref());
            error.set_text(script);
            error
        };
        let mut lexer = Lexer::new(script);
        // The specification tests names of such characters.
        lexer.allow_confusing_unicode(true);
        let buffer = ParseBuffer::new_with_lexer(lexer).map_err(located)?;
        let wast: Wast<'_> = parser::parse(&buffer).map_err(located)?;

        let mut report = Report::default();
        for directive in wast.directives {
            let line = directive.span().linecol_in(script).0 + 1;
            self.about = None;
            if let Some(before) = &mut self.before {
                before(&mut self.world);
            }
            match self.directive(directive, line) {
                Ok(()) => report.passed += 1,
                Err(message) => {
                    let (file, about) = (file.to_owned(), self.about);
                    report.failures.push(ScriptFailure { file, line, message, about });
                }
            }
        }
        Ok(report)
    }

    fn directive(&mut self, directive: WastDirective<'_>, line: usize) -> Result<(), String> {
        use WastDirective as D;
        match directive {
            D::Module(mut module) => {
                let name = name_of(&module);
                let module = self.compile_valid(&mut module);
                let made = module.and_then(|module| self.instantiate_as(name.clone(), &module));
                if made.is_err() {
                    // The next directives refer to this module, not to an earlier one.
                    for name in [None, name] {
                        self.world.instances.remove(&name);
                        self.missing.insert(name, line);
                    }
                }
                made
            }
            D::ModuleDefinition(mut module) => {
                let name = name_of(&module);
                let module = self.compile_valid(&mut module)?;
                self.definitions.insert(None, module.clone());
                if name.is_some() {
                    self.definitions.insert(name, module);
                }
                Ok(())
            }
            D::ModuleInstance { instance, module, .. } => {
                let name = module.map(|id| id.name().to_owned());
                let module = self.definitions.get(&name).cloned();
                let module =
                    module.ok_or_else(|| format!("no module definition is named {name:?}"))?;
                self.instantiate_as(instance.map(|id| id.name().to_owned()), &module)
            }
            D::Register { name, module, .. } => {
                let instance = self.instance(module)?;
                self.world
                    .linker
                    .instance(&mut self.world.store, name, instance)
                    .map(drop)
                    .map_err(|error| format!("cannot register {name:?}: {error:#}"))
            }
            D::Invoke(invoke) => match self.invoke(&invoke)? {
                Ok(_) => Ok(()),
                Err(error) => Err(format!("failed: {error:#}")),
            },
            D::AssertReturn { exec, results, .. } => match self.execute(exec)? {
                Ok(values) => value::compare(&self.world.store, &values, &results),
                Err(error) => Err(format!("failed instead of returning: {error:#}")),
            },
            D::AssertTrap { exec, message, .. } => {
                let result = self.execute(exec)?;
                expect_trap(result, message)
            }
            D::AssertExhaustion { call, message, .. } => {
                let result = self.invoke(&call)?;
                expect_trap(result, message)
            }
            D::AssertUnlinkable { module, message, .. } => {
                let module = self.compile_valid(&mut QuoteWat::Wat(module))?;
                match self.world.linker.instantiate(&mut self.world.store, &module) {
                    Ok(_) => Err(format!("was linked; expected {message:?}")),
                    Err(error) if error.kind() != ErrorKind::Link => {
                        Err(format!("was linked, but failed ({error:#}); expected {message:?}"))
                    }
                    Err(error) if !format!("{error:#}").contains(message) => {
                        Err(format!("could not be linked ({error:#}); expected {message:?}"))
                    }
                    Err(_) => Ok(()),
                }
            }
            D::AssertInvalid { mut module, message, .. } => {
                // An invalid module is well formed, so it has a binary form.
                let bytes = encode(&mut module)
                    .map_err(|error| format!("is malformed ({error}); expected {message:?}"))?;
                self.refused(&bytes, message)
            }
            D::AssertMalformed { mut module, message, .. } => match encode(&mut module) {
                Ok(bytes) => self.refused(&bytes, message),
                Err(_) => Ok(()),
            },
            D::AssertInvalidCustom { .. } | D::AssertMalformedCustom { .. } => {
                Err("assertions on custom sections are not supported".to_owned())
            }
            D::AssertException { exec, .. } => match self.execute(exec)? {
                Ok(values) => Err(format!("returned {values:?}; expected an exception")),
                Err(error) if error.kind() == ErrorKind::Exception => Ok(()),
                Err(error) => Err(format!("failed without an exception ({error:#})")),
            },
            D::AssertSuspension { .. } => {
                Err("the stack-switching proposal is not supported".to_owned())
            }
            D::Thread(_) | D::Wait { .. } => {
                Err("the threads proposal is not supported".to_owned())
            }
        }
    }

    /// The outer error means that the directive cannot be executed, the inner one that the
    /// guest or its instantiation failed.
    fn execute(&mut self, execute: WastExecute<'_>) -> Result<Result<Vec<Val>, Error>, String> {
        match execute {
            WastExecute::Invoke(invoke) => self.invoke(&invoke),
            WastExecute::Wat(module) => {
                let module = self.compile_valid(&mut QuoteWat::Wat(module))?;
                Ok(self
                    .world
                    .linker
                    .instantiate(&mut self.world.store, &module)
                    .map(|_| Vec::new()))
            }
            WastExecute::Get { module, global, .. } => {
                let instance = self.instance(module)?;
                match instance.get_export(&mut self.world.store, global) {
                    Some(Extern::Global(global)) => Ok(Ok(vec![global.get(&mut self.world.store)])),
                    _ => Err(format!("no exported global is named {global:?}")),
                }
            }
        }
    }

    fn invoke(&mut self, invoke: &WastInvoke<'_>) -> Result<Result<Vec<Val>, Error>, String> {
        let instance = self.instance(invoke.module)?;
        let function = instance
            .get_func(&mut self.world.store, invoke.name)
            .ok_or_else(|| format!("no exported function is named {:?}", invoke.name))?;
        let mut arguments = Vec::new();
        for argument in &invoke.args {
            arguments.push(value::argument(&mut self.world.store, argument)?);
        }
        Ok((self.call)(&mut self.world, &function, &arguments))
    }

    /// Compiles a module that the script expects to be valid.
    fn compile_valid(&self, module: &mut QuoteWat<'_>) -> Result<Module, String> {
        let bytes = encode(module).map_err(|error| format!("is malformed: {error}"))?;
        Module::new(self.world.store.engine(), &bytes)
            .map_err(|error| format!("was refused: {error:#}"))
    }

    /// Requires that the engine refuses these bytes.
    fn refused(&self, bytes: &[u8], message: &str) -> Result<(), String> {
        match Module::new(self.world.store.engine(), bytes) {
            Ok(_) => Err(format!("was accepted; expected {message:?}")),
            Err(error) if error.kind() == ErrorKind::Compile => Ok(()),
            Err(error) => Err(format!("failed otherwise ({error:#}); expected {message:?}")),
        }
    }

    fn instantiate_as(&mut self, name: Option<String>, module: &Module) -> Result<(), String> {
        let instance = self
            .world
            .linker
            .instantiate(&mut self.world.store, module)
            .map_err(|error| format!("could not be instantiated: {error:#}"))?;
        self.world.instances.insert(None, instance);
        if name.is_some() {
            self.world.instances.insert(name, instance);
        }
        Ok(())
    }

    fn instance(&mut self, name: Option<Id<'_>>) -> Result<Instance, String> {
        let name = name.map(|id| id.name().to_owned());
        let known = self.world.instances.get(&name).copied();
        if known.is_none() {
            self.about = self.missing.get(&name).copied();
        }
        known.ok_or_else(|| match name {
            Some(name) => format!("no instance is named {name:?}"),
            None => "there is no instance yet".to_owned(),
        })
    }
}

fn name_of(module: &QuoteWat<'_>) -> Option<String> {
    match module {
        QuoteWat::Wat(Wat::Module(module)) => module.id.map(|id| id.name().to_owned()),
        _ => None,
    }
}

/// The module in the binary format. Components are refused like any other text that is not a
/// module.
fn encode(module: &mut QuoteWat<'_>) -> Result<Vec<u8>, wast::Error> {
    match module {
        QuoteWat::Wat(Wat::Component(component)) => {
            Err(wast::Error::new(component.span, "components are not supported".to_owned()))
        }
        QuoteWat::QuoteComponent(span, _) => {
            Err(wast::Error::new(Span::clone(span), "components are not supported".to_owned()))
        }
        module => module.encode(),
    }
}

/// Requires a trap with the expected cause. A script gives the beginning of a message, which
/// may go on with details of one interpreter.
fn expect_trap(result: Result<Vec<Val>, Error>, expected: &str) -> Result<(), String> {
    match result {
        Ok(values) => Err(format!("returned {values:?}; expected the trap {expected:?}")),
        Err(error) => match trap(&error) {
            Some(cause) if cause.contains(expected) || expected.starts_with(&cause) => Ok(()),
            Some(cause) => Err(format!("trapped with {cause:?}; expected {expected:?}")),
            None => Err(format!("failed without a trap ({error:#}); expected {expected:?}")),
        },
    }
}

/// The cause of a trap, if the error is one.
fn trap(error: &Error) -> Option<String> {
    error.downcast_ref::<Trap>().map(|trap| trap.code().to_string())
}
