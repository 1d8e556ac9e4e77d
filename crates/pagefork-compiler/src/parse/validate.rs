//! Validation of modules that are not compiled.

use wasmparser::FuncValidatorAllocations;

use crate::base::error::CompileError;
use crate::base::options::CompileOptions;
use crate::parse::{DefinedBody, parse};

/// Validates a module in its binary format, its functions included.
///
/// # Errors
/// If the bytes are no valid module, or use a proposal that is switched off or unknown.
pub fn validate(wasm: &[u8], options: &CompileOptions) -> Result<(), CompileError> {
    let mut allocations = FuncValidatorAllocations::default();
    for DefinedBody { to_validate, body } in parse(wasm, &options.features)?.bodies {
        let mut validator = to_validate.into_validator(allocations);
        validator.validate(&body)?;
        allocations = validator.into_allocations();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_validated_too() {
        let options = CompileOptions::default();
        let wasm = |text| wat::parse_str(text).unwrap();
        validate(&wasm("(module (func (result i32) i32.const 1))"), &options).unwrap();
        let error = validate(&wasm("(module (func) (func (result i32) nop))"), &options);
        assert!(matches!(error, Err(CompileError::Invalid { .. })), "{error:?}");
        let error = validate(b"(module)", &options);
        assert!(matches!(error, Err(CompileError::Invalid { .. })), "{error:?}");
    }
}
