//! Every instruction that accesses memory, and what it makes of the bytes.

#![allow(unreachable_pub, reason = "a part of the tests that use it")]

use pagefork::Val;

/// What a load makes of the bytes that it reads.
#[derive(Clone, Copy)]
enum Meaning {
    /// Zero-extended.
    Zeros,
    /// Sign-extended to this many bits.
    Sign(u32),
    /// Repeated over 16 bytes.
    Splat,
    /// Lanes of this many bytes, extended to twice the width.
    Lanes(usize, bool),
}

/// An instruction that accesses memory.
pub struct Access {
    /// Its name, with the lane where it takes one.
    pub name: String,
    /// Type of the value loaded or stored.
    pub ty: &'static str,
    /// Bytes that it accesses.
    pub width: u64,
    /// Whether it stores.
    pub stores: bool,
    lane: Option<u32>,
    meaning: Meaning,
}

/// Every load of the SIMD set and before.
pub fn loads() -> Vec<Access> {
    let mut all = Vec::new();
    let mut add = |name: &str, ty, width, meaning| {
        let name = name.to_owned();
        all.push(Access { name, ty, width, stores: false, lane: None, meaning });
    };
    for (ty, bits) in [("i32", 32), ("i64", 64)] {
        for narrow in [8, 16, 32].into_iter().filter(|narrow| *narrow < bits) {
            let width = u64::from(narrow / 8);
            add(&format!("{ty}.load{narrow}_s"), ty, width, Meaning::Sign(bits));
            add(&format!("{ty}.load{narrow}_u"), ty, width, Meaning::Zeros);
        }
    }
    for (ty, width) in [("i32", 4), ("i64", 8), ("f32", 4), ("f64", 8), ("v128", 16)] {
        add(&format!("{ty}.load"), ty, width, Meaning::Zeros);
    }
    for (shape, from) in [("8x8", 1), ("16x4", 2), ("32x2", 4)] {
        add(&format!("v128.load{shape}_s"), "v128", 8, Meaning::Lanes(from, true));
        add(&format!("v128.load{shape}_u"), "v128", 8, Meaning::Lanes(from, false));
    }
    for width in [1, 2, 4, 8] {
        add(&format!("v128.load{}_splat", 8 * width), "v128", width, Meaning::Splat);
    }
    for width in [4, 8] {
        add(&format!("v128.load{}_zero", 8 * width), "v128", width, Meaning::Zeros);
    }
    for width in [1, 2, 4, 8u64] {
        let name = format!("v128.load{}_lane", 8 * width);
        // Into a vector of zeros, the highest lane and the lowest.
        for lane in [0, 16 / width as u32 - 1] {
            let (name, meaning) = (name.clone(), Meaning::Zeros);
            let lane = Some(lane);
            all.push(Access { name, ty: "v128", width, stores: false, lane, meaning });
        }
    }
    all
}

/// Every store.
pub fn stores() -> Vec<Access> {
    let mut all = Vec::new();
    let mut add = |name: String, ty, width, lane| {
        all.push(Access { name, ty, width, stores: true, lane, meaning: Meaning::Zeros });
    };
    for (ty, bits) in [("i32", 32u32), ("i64", 64)] {
        for narrow in [8, 16, 32].into_iter().filter(|narrow| *narrow < bits) {
            add(format!("{ty}.store{narrow}"), ty, u64::from(narrow / 8), None);
        }
    }
    for (ty, width) in [("i32", 4), ("i64", 8), ("f32", 4), ("f64", 8), ("v128", 16)] {
        add(format!("{ty}.store"), ty, width, None);
    }
    for width in [1, 2, 4, 8] {
        add(format!("v128.store{}_lane", 8 * width), "v128", width, Some(0));
    }
    all
}

impl Access {
    /// A function that makes the access at its argument plus `offset`; it stores
    /// ones, and returns what it loads.
    pub fn function(&self, export: &str, offset: u64) -> String {
        self.function_of("", "i32", export, offset)
    }

    /// As [`Self::function`], of a named memory whose indices are of this type.
    pub fn function_of(&self, memory: &str, index: &str, export: &str, offset: u64) -> String {
        let Self { name, ty, .. } = self;
        let lane = self.lane.map(|lane| lane.to_string()).unwrap_or_default();
        let ones = match *ty {
            "v128" => "(v128.const i64x2 -1 -1)",
            "i32" => "(i32.const -1)",
            "i64" => "(i64.const -1)",
            "f32" => "(f32.reinterpret_i32 (i32.const -1))",
            _ => "(f64.reinterpret_i64 (i64.const -1))",
        };
        let zero = if self.lane.is_some() { "(v128.const i64x2 0 0)" } else { "" };
        let at = format!("{name} {memory} offset={offset} {lane} (local.get 0)");
        let head = format!("(func (export \"{export}\") (param {index})");
        match self.stores {
            true => format!("{head} ({at} {ones}))\n"),
            false => format!("{head} (result {ty}) ({at} {zero}))\n"),
        }
    }

    /// The bits that a load of these bytes gives.
    pub fn value(&self, bytes: &[u8]) -> u128 {
        assert_eq!(bytes.len() as u64, self.width);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0u128, |n, b| n << 8 | u128::from(*b));
        let extend = |bytes: &[u8], bits: u32| {
            let shift = 128 - 8 * bytes.len() as u32;
            let wide = ((number(bytes) << shift) as i128 >> shift) as u128;
            if bits == 128 { wide } else { wide & ((1 << bits) - 1) }
        };
        match self.meaning {
            Meaning::Zeros => number(bytes) << (8 * self.width as u32 * self.lane.unwrap_or(0)),
            Meaning::Sign(bits) => extend(bytes, bits),
            Meaning::Splat => number(&bytes.repeat(16 / bytes.len())),
            Meaning::Lanes(size, signed) => {
                let lanes = bytes.chunks(size).rev().map(|lane| match signed {
                    true => extend(lane, 16 * size as u32),
                    false => number(lane),
                });
                lanes.fold(0, |vector, lane| vector << (16 * size) | lane)
            }
        }
    }
}

/// The bits of a number or vector.
pub fn bits(value: &Val) -> u128 {
    match *value {
        Val::I32(value) => u128::from(value as u32),
        Val::I64(value) => u128::from(value as u64),
        Val::F32(bits) => u128::from(bits),
        Val::F64(bits) => u128::from(bits),
        Val::V128(bits) => bits,
        _ => panic!("a reference has no bits"),
    }
}
