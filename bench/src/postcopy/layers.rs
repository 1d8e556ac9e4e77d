//! Layers of the plan, each of which can be left out.

use pagefork_postcopy::FetchPlan;

/// What is not asked for by itself, besides what guests wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Without {
    Nothing,
    Certain,
    Recorded,
    Stride,
    Background,
    /// Then guesses are all that is asked for besides faults.
    BackgroundAndStride,
}

impl Without {
    pub(super) const ALL: [Self; 6] = [
        Self::Nothing,
        Self::Certain,
        Self::Recorded,
        Self::Stride,
        Self::Background,
        Self::BackgroundAndStride,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Certain => "certain",
            Self::Recorded => "recorded",
            Self::Stride => "stride",
            Self::Background => "background",
            Self::BackgroundAndStride => "background and stride",
        }
    }

    pub(super) fn of_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|layer| layer.name() == name).expect("a layer")
    }

    pub(super) fn plan(self) -> FetchPlan {
        FetchPlan {
            certain: self != Self::Certain,
            stride: !matches!(self, Self::Stride | Self::BackgroundAndStride),
            background: !matches!(self, Self::Background | Self::BackgroundAndStride),
            ..FetchPlan::default()
        }
    }
}
