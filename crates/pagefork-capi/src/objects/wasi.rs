//! What WASI programs are to see.

use std::sync::Arc;

use pagefork::{Error, Result};
use pagefork_wasi::{OutputKind, OutputPipe, StdinKind, WasiCtxBuilder};

use crate::objects::saved_program::SavedProgram;
use crate::objects::store::HostData;

/// What WASI programs are to see; stores are given a state of it each.
#[derive(Clone)]
pub(crate) struct pagefork_wasi_config_t {
    /// All but the standard streams.
    pub(crate) builder: WasiCtxBuilder,
    /// What programs read.
    pub(crate) stdin: StdinKind,
    /// Where they write: output, errors.
    pub(crate) outputs: [Output; 2],
}

/// Where programs write.
#[derive(Clone, Copy)]
pub(crate) enum Output {
    /// Nowhere.
    Discarded,
    /// To that of this process.
    Inherited,
    /// To memory, at most so many bytes, for C to read.
    Captured(usize),
}

impl Output {
    fn open(self) -> (OutputKind, Option<OutputPipe>) {
        match self {
            Self::Discarded => (OutputKind::Null, None),
            Self::Inherited => (OutputKind::Inherit, None),
            Self::Captured(size) => {
                let pipe = OutputPipe::new(size);
                (OutputKind::Pipe(pipe.clone()), Some(pipe))
            }
        }
    }
}

impl pagefork_wasi_config_t {
    /// Programs see nothing.
    pub(crate) fn new() -> Self {
        Self {
            builder: WasiCtxBuilder::new(),
            stdin: StdinKind::Null,
            outputs: [Output::Discarded; 2],
        }
    }

    /// Makes a state for a store with this data.
    ///
    /// # Errors
    /// If it cannot be: an argument or variable has a zero in it.
    pub(crate) fn give_to(&self, data: &mut HostData) -> Result<()> {
        let template = self.builder.template().map_err(Error::new)?;
        let [(stdout, output), (stderr, errors)] = self.outputs.map(Output::open);
        let variables = template.environment();
        let wasi = template.context(variables, self.stdin.clone(), stdout, stderr);
        data.set_wasi(wasi, [output, errors], None);
        Ok(())
    }

    /// Makes what a program had again, for a store with this data.
    ///
    /// # Errors
    /// If it had something that this does not give it, or a file is not what it was.
    fn restore_to(&self, program: &Arc<SavedProgram>, data: &mut HostData) -> Result<()> {
        let [(stdout, output), (stderr, errors)] = self.outputs.map(Output::open);
        let mut builder = self.builder.clone();
        builder.stdin(self.stdin.clone()).stdout(stdout).stderr(stderr);
        program.give_files(&mut builder)?;
        let restored = builder.restore(&program.state).map_err(Error::new)?;
        data.set_wasi(restored.ctx, [output, errors], Some(program.clone()));
        Ok(())
    }
}

/// Gives a store what its programs see: what one had, if it goes on with that.
///
/// # Errors
/// As [`pagefork_wasi_config_t::give_to`]; if what a program had cannot be made again.
pub(crate) fn give_wasi(
    data: &mut HostData,
    config: Option<&pagefork_wasi_config_t>,
    program: Option<&Arc<SavedProgram>>,
) -> Result<()> {
    match (config, program) {
        (None, None) => Ok(()),
        (Some(config), None) => config.give_to(data),
        (Some(config), Some(program)) => config.restore_to(program, data),
        (None, Some(program)) => pagefork_wasi_config_t::new().restore_to(program, data),
    }
}
