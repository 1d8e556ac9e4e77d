//! Functions of signatures that a generator has chosen, up to the most that tuples have, get and give
//! the same bits at each level, in each direction: typed, untyped and unchecked calls, of host functions
//! made of typed closures, of closures on slices, and of closures on values without types.

use pagefork::{
    Caller, Engine, Func, FuncType, Instance, Module, Result, Store, TypedFunc, Val, ValRaw,
    WasmTy, WasmValues,
};

/// Numbers that look like no other.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        self.0 ^ self.0 >> 29
    }
}

/// Types of values, with bits by which they are compared.
trait Bits: WasmTy + Into<Val> {
    fn any(random: &mut Random) -> Self;
}

macro_rules! bits {
    ($($ty:ty: $random:ident => $value:expr;)*) => {$(
        impl Bits for $ty {
            fn any($random: &mut Random) -> Self {
                $value
            }
        }
    )*};
}

bits! {
    i32: random => random.next() as i32;
    u32: random => random.next() as u32;
    i64: random => random.next() as i64;
    u64: random => random.next();
    u128: random => u128::from(random.next()) << 64 | u128::from(random.next());
    // Of four one is not a number, quiet or signalling.
    f32: random => match random.next() % 4 {
        0 => f32::from_bits(random.next() as u32 | 0x7f80_0001),
        _ => f32::from_bits(random.next() as u32),
    };
    f64: random => match random.next() % 4 {
        0 => f64::from_bits(random.next() | 0x7ff0_0000_0000_0001),
        _ => f64::from_bits(random.next()),
    };
}

/// Lists of such values.
trait Tuple: WasmValues {
    fn values(self) -> Vec<Val>;
}

macro_rules! tuples {
    (@one $($value:ident)*) => {
        #[allow(non_snake_case, reason = "a type parameter and its value share a name")]
        impl<$($value: Bits),*> Tuple for ($($value,)*) {
            fn values(self) -> Vec<Val> {
                let ($($value,)*) = self;
                vec![$($value.into()),*]
            }
        }
    };
    () => { tuples!(@one); };
    ($first:ident $($rest:ident)*) => {
        tuples!(@one $first $($rest)*);
        tuples!($($rest)*);
    };
}

tuples!(A B C D E F G H I J K L M N O P);

/// Values as bits.
fn shown(values: &[Val]) -> String {
    format!("{values:?}")
}

/// A module whose exports call what it imports: at the call site, through a reference, by a tail
/// call, and from a frame that catches.
fn forwarding(ty: &FuncType) -> String {
    let list = |kind: &str, types: &[pagefork::ValType]| {
        let types: String = types.iter().map(|ty| format!(" {ty}")).collect();
        if types.is_empty() { String::new() } else { format!("({kind}{types})") }
    };
    let results = list("result", &ty.results);
    let ty_text = format!("{} {results}", list("param", &ty.params));
    let args: String = (0..ty.params.len()).map(|i| format!("(local.get {i})")).collect();
    format!(
        r#"(module
            (type $t (func {ty_text}))
            (import "host" "f" (func $f (type $t)))
            (table 1 funcref)
            (elem (i32.const 0) $f)
            (tag $unused)
            (func (export "plain") (type $t) (call $f {args}))
            (func (export "tail") (type $t) (return_call $f {args}))
            (func (export "reference") (type $t) (call_indirect (type $t) {args} (i32.const 0)))
            (func (export "catching") (type $t)
                (block $caught
                    (try_table {results} (catch $unused $caught) (call $f {args}))
                    (return))
                (unreachable))
            (export "import" (func $f)))"#
    )
}

/// Calls a host function through all exports, at each level.
fn check<Params: Tuple, Results: Tuple>(
    store: &mut Store<u64>,
    f: Func,
    given: Params,
    answer: Results,
) -> Result<()> {
    let (ty, params, results) = (&f.ty(&*store), &given.values(), &answer.values());
    let module = Module::new(store.engine(), forwarding(ty))?;
    let instance = Instance::new(&mut *store, &module, &[f.into()])?;
    for export in ["plain", "tail", "reference", "catching", "import"] {
        let function = instance.get_func(&mut *store, export).expect("an export");
        let typed: TypedFunc<Params, Results> = function.typed(&*store)?;
        for _ in 0..2 {
            let found = typed.call(&mut *store, given)?.values();
            assert_eq!(shown(&found), shown(results), "{export} of {ty}, typed");
            let mut found = vec![Val::I32(0); results.len()];
            function.call(&mut *store, params, &mut found)?;
            assert_eq!(shown(&found), shown(results), "{export} of {ty}, untyped");
            let mut raw = vec![ValRaw::v128(u128::MAX); params.len().max(results.len())];
            for (raw, value) in raw.iter_mut().zip(params) {
                *raw = value.to_raw(&*store)?;
            }
            // SAFETY: these are values of the function's type, and room for its results.
            unsafe { function.call_unchecked(&mut *store, &raw mut raw[..])? };
            let found = raw.iter().zip(&ty.results);
            // SAFETY: the function has returned values of these types.
            let found = found.map(|(raw, ty)| unsafe { Val::from_raw(&*store, *raw, *ty) });
            assert_eq!(
                shown(&found.collect::<Vec<_>>()),
                shown(results),
                "{export} of {ty}, unchecked"
            );
        }
    }
    Ok(())
}

macro_rules! signatures {
    ($store:ident, $random:ident; $(($($name:ident: $ty:ty),*) -> ($($result:ty),* $(,)?);)*) => {$(
        #[allow(unused_variables, reason = "without values")]
        {
            $(let $name = <$ty as Bits>::any(&mut $random);)*
            let given = ($($name,)*);
            let answer = ($(<$result as Bits>::any(&mut $random),)*);
            let f = Func::wrap(&mut $store, move |$($name: $ty),*| {
                assert_eq!(shown(&($($name,)*).values()), shown(&given.values()));
                answer
            });
            check(&mut $store, f, given, answer)?;
            let f = Func::wrap(&mut $store, move |mut caller: Caller<'_, u64>, $($name: $ty),*| {
                *caller.data_mut() += 1;
                assert_eq!(shown(&($($name,)*).values()), shown(&given.values()));
                answer
            });
            check(&mut $store, f, given, answer)?;
            let ty = f.ty(&$store);
            let f = Func::new(&mut $store, ty.clone(), move |_, params, results| {
                assert_eq!(shown(params), shown(&given.values()));
                results.copy_from_slice(&answer.values());
                Ok(())
            });
            check(&mut $store, f, given, answer)?;
            let types = ty.params.clone();
            let function = move |caller: Caller<'_, u64>, values: &mut [ValRaw]| {
                let found = values.iter().zip(&types);
                // SAFETY: the arguments are of the types of the parameters.
                let found = found.map(|(raw, ty)| unsafe { Val::from_raw(&caller, *raw, *ty) });
                assert_eq!(shown(&found.collect::<Vec<_>>()), shown(&given.values()));
                for (raw, value) in values.iter_mut().zip(answer.values()) {
                    *raw = value.to_raw(&caller)?;
                }
                Ok(())
            };
            // SAFETY: what it leaves is of the types of the results.
            let f = unsafe { Func::new_unchecked(&mut $store, ty, function) };
            check(&mut $store, f, given, answer)?;
        }
    )*};
}

#[test]
fn bits_pass_whatever_the_signature() -> Result<()> {
    let mut store = Store::new(&Engine::default(), 0);
    let mut random = Random(7);
    for _ in 0..3 {
        signatures! { store, random;
            (a: u128, b: u128, c: u64, d: u64, e: f32, f: u128, g: f32, h: u32, i:
                u32) -> (u128, f32, u64, f64, f32, u128, u32, i32, u64);
            (a: i32, b: f32, c: u128, d: f64, e: f64) -> (i32,);
            (a: u64, b: f64, c: f64, d: f32, e: f64, f: u32, g: f32, h: i32, i:
                u128, j: f32, k: i32, l: i32, m: i32, n: u32, o: u32, p: f32) ->
                (i32, u128, u64, i64, u64);
            (a: f32, b: u32, c: f64, d: i64, e: u64, f: i32, g: f64, h: i32, i: u64,
                j: f64, k: i64, l: u64, m: f32, n: u128, o: i32, p: f64) -> (i64,);
            (a: f32, b: i64, c: i32, d: i32, e: f32, f: u128) -> (i32,);
            (a: u128, b: i64, c: u64, d: i32, e: i32, f: u128, g: f64, h: i32) ->
                (u32,);
            (a: u64, b: u64, c: f64) -> ();
            (a: i32, b: f32, c: f64, d: u32, e: u128, f: f64, g: i64, h: i64) ->
                (i32, i64, i64, i32, u64);
            (a: u32) -> (f64,);
            (a: i32) -> ();
            (a: u32, b: f64, c: f32, d: u32, e: u64, f: f32, g: u32, h: f64, i:
                u128) -> (u32, u64, f64, u64, i32, u64, u64, u32);
            () -> (u128, u128);
            (a: i32, b: u32, c: u32, d: u64, e: u128, f: f32, g: f64, h: f32, i:
                i32, j: i32, k: u32, l: u32, m: u64, n: i64, o: i32, p: u128) ->
                (f32, i64);
            (a: i32, b: i32, c: i32, d: u32, e: f32) -> (f64, u32, i32, f32, i64);
            (a: u64, b: u32, c: f32, d: u64, e: u128, f: f32) -> (u32, u128, u64,
                u32, f64, u32, i64, u32, u128, f32, u32, f64, u32, u32, f64, f64);
            (a: f64, b: u64, c: u64, d: f32, e: i32, f: u64, g: i32, h: i32, i: i32,
                j: i32, k: f32, l: i64) -> (u32,);
            (a: u64, b: u128, c: f32, d: u64, e: i64, f: f32, g: u32, h: f64) ->
                (i32, u32);
            (a: f32, b: f64, c: u128) -> (f32, f32, i32, i64, u32, u32, f64, i32);
            (a: u64) -> (u64, u32);
            () -> ();
            (a: i64, b: f32) -> (f32, u32);
            (a: u32) -> (u64, i64, f64);
            (a: i64, b: f64, c: i32, d: f32, e: i64, f: f64, g: f32, h: i32, i: f64,
                j: f32, k: i64, l: f64, m: f32) -> (f32,);
            (a: f32, b: f32, c: f32, d: f32, e: f32, f: f32, g: f32, h: f32, i: i32,
                j: i32, k: i32, l: i32, m: i32) -> (i64,);
            (a: f32, b: f32, c: f32, d: f32, e: f32, f: f32, g: f32, h: f32, i: f32)
                -> (f64,);
            (a: i64, b: i64, c: i64, d: i64, e: i64, f: i64) -> (i32,);
            // Of 4, 7, 10, 11, 14 and 15 parameters: what fits registers, and what does not.
            (a: i32, b: f64, c: u64, d: f32) -> (i64,);
            (a: u128, b: u32, c: f64, d: i64) -> (f64, u128);
            (a: i64, b: f32, c: i32, d: f64, e: u64, f: f32, g: u32) -> (f32,);
            (a: u32, b: u32, c: i64, d: u64, e: i32, f: i64, g: u32) -> (f64,);
            (a: f64, b: i32, c: f32, d: i64, e: f64, f: u32, g: f32, h: u64, i: f64,
                j: i32) -> (i32,);
            (a: f64, b: i32, c: u128, d: i64, e: f64, f: u32, g: f32, h: u64, i: f64,
                j: i32) -> (u128, i32, f32);
            (a: f32, b: i64, c: f64, d: u32, e: f32, f: i32, g: f64, h: u64, i: f32,
                j: i32, k: f64) -> (u64,);
            (a: i64, b: i64, c: i64, d: u32, e: i32, f: i32, g: u64, h: u64, i: i32,
                j: i32, k: f64) -> (f32,);
            (a: f32, b: f64, c: f32, d: f64, e: f32, f: f64, g: f32, h: f64, i: i64,
                j: u32, k: i32, l: u64, m: i64, n: u32) -> (i64,);
            (a: f32, b: u128, c: f32, d: f64, e: f32, f: f64, g: f32, h: f64, i: i64,
                j: u32, k: i32, l: u64, m: i64, n: f64) -> (f64, i64);
            (a: i32, b: i64, c: f32, d: f64, e: u128, f: u32, g: u64, h: i32, i: i64,
                j: f32, k: f64, l: u128, m: u32, n: u64, o: f32) -> (u128,);
            (a: f64, b: f64, c: f64, d: f64, e: f64, f: f64, g: f64, h: f64, i: f64,
                j: f64, k: f64, l: f64, m: f64, n: f64, o: f64) -> (f64,);
        }
    }
    assert!(*store.data() > 0);
    Ok(())
}
