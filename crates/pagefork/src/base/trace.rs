//! Spans for those who trace, where the feature is on.

/// Opens a span of this level and name until the end of the block, or does so only on a
/// condition. Without the feature `tracing` it is nothing.
macro_rules! span {
    (if $condition:expr, $level:ident, $name:literal) => {
        #[cfg(feature = "tracing")]
        let _span = ($condition).then(|| {
            ::tracing::span!(target: "pagefork", ::tracing::Level::$level, $name).entered()
        });
    };
    ($level:ident, $name:literal $(, $key:ident = $value:expr)*) => {
        #[cfg(feature = "tracing")]
        let _span = ::tracing::span!(
            target: "pagefork", ::tracing::Level::$level, $name $(, $key = $value)*
        )
        .entered();
    };
}

pub(crate) use span;
