//! Graphviz, a library of C functions.

use std::collections::BTreeMap;

use pagefork::{Engine, Linker, Memory, Module, Store, TypedFunc};
use pagefork_wasi::{WasiCtx, WasiCtxBuilder};

/// An instance of Graphviz and the functions it exports.
pub(crate) struct Graphviz {
    store: Store<WasiCtx>,
    memory: Memory,
    malloc: TypedFunc<u32, u32>,
    free: TypedFunc<u32, ()>,
    render: TypedFunc<(u32, u32, u32, u32), u32>,
    last_error: TypedFunc<(), u32>,
}

impl Graphviz {
    pub(crate) fn new(module: &Module) -> Self {
        let engine: &Engine = module.engine();
        let mut store = Store::new(engine, WasiCtxBuilder::new().build().expect("a context"));
        let mut linker = Linker::new(engine);
        pagefork_wasi::add_to_linker(&mut linker, |ctx| ctx).expect("every name is free");
        let instance = linker.instantiate(&mut store, module).expect("WASI is all it imports");
        Self {
            memory: instance.get_memory(&mut store, "memory").expect("a memory"),
            malloc: instance.get_typed_func(&mut store, "malloc").expect("a function"),
            free: instance.get_typed_func(&mut store, "free").expect("a function"),
            render: instance.get_typed_func(&mut store, "graphviz_render").expect("a function"),
            last_error: instance
                .get_typed_func(&mut store, "graphviz_last_error")
                .expect("a function"),
            store,
        }
    }

    /// What `dot -T FORMAT -K LAYOUT` prints for this source, or what it says is
    /// wrong.
    pub(crate) fn render(
        &mut self,
        source: &str,
        format: &str,
        layout: &str,
    ) -> Result<String, String> {
        let words = [source, format, layout].map(|text| self.string(text));
        let length = self.malloc.call(&mut self.store, 4).expect("malloc does not trap");
        let [source, format, layout] = words;
        let result = self
            .render
            .call(&mut self.store, (source, format, layout, length))
            .expect("Graphviz does not trap");
        let outcome = if result == 0 {
            let message = self.last_error.call(&mut self.store, ()).expect("no trap");
            let rest = &self.memory.data(&self.store)[message as usize..];
            let end = rest.iter().position(|byte| *byte == 0).expect("an end");
            Err(String::from_utf8(rest[..end].to_vec()).expect("text"))
        } else {
            let data = self.memory.data(&self.store);
            let size = data[length as usize..][..4].try_into().expect("four bytes");
            let bytes = &data[result as usize..][..u32::from_le_bytes(size) as usize];
            Ok(String::from_utf8(bytes.to_vec()).expect("text"))
        };
        for pointer in [source, format, layout, length, result] {
            self.free.call(&mut self.store, pointer).expect("free does not trap");
        }
        outcome
    }

    /// Copies a string into the guest's memory.
    fn string(&mut self, text: &str) -> u32 {
        let bytes = [text.as_bytes(), b"\0"].concat();
        let size = u32::try_from(bytes.len()).expect("a short text");
        let pointer = self.malloc.call(&mut self.store, size).expect("malloc does not trap");
        self.memory.write(&mut self.store, pointer as usize, &bytes).expect("it is in bounds");
        pointer
    }
}

/// A node or an edge of an SVG that Graphviz made.
#[derive(PartialEq, PartialOrd, Debug, Clone)]
pub(crate) struct Element {
    /// Its name: of a node its own, of an edge both nodes' and `->` or `--`.
    pub(crate) title: String,
    /// Its lines of text.
    pub(crate) labels: Vec<String>,
}

/// The elements of one class, `node` or `edge`, sorted.
pub(crate) fn elements(svg: &str, class: &str) -> Vec<Element> {
    let start = format!("class=\"{class}\">");
    let mut found: Vec<Element> = svg
        .split("<g id=")
        .skip(1)
        .filter(|group| group.lines().next().is_some_and(|line| line.ends_with(&start)))
        .map(|group| {
            let group = &group[..group.find("</g>").expect("an end of the group")];
            let title = inside(group, "<title>", "</title>").expect("a title");
            let labels = group
                .split("<text ")
                .skip(1)
                .filter_map(|text| inside(text, ">", "</text>"))
                .collect();
            Element { title, labels }
        })
        .collect();
    found.sort_by(|a, b| a.partial_cmp(b).expect("text"));
    found
}

/// Where the `plain` format puts nodes, by name: x and y of the centre, width and
/// height, in inches, y upwards.
pub(crate) fn places(plain: &str) -> BTreeMap<String, [f64; 4]> {
    rows(plain, "node")
        .map(|row| {
            let number = |at: usize| row[at].parse().expect("a number");
            (row[1].to_owned(), [number(2), number(3), number(4), number(5)])
        })
        .collect()
}

/// The ends of edges in the `plain` format: both nodes' names, and where the
/// first and the last point of the spline lie.
pub(crate) fn ends(plain: &str) -> Vec<(String, String, [f64; 2], [f64; 2])> {
    rows(plain, "edge")
        .map(|row| {
            let count: usize = row[3].parse().expect("a count");
            let point = |n: usize| [4, 5].map(|at| row[at + 2 * n].parse().expect("a number"));
            (row[1].to_owned(), row[2].to_owned(), point(0), point(count - 1))
        })
        .collect()
}

fn rows<'a>(plain: &'a str, kind: &'a str) -> impl Iterator<Item = Vec<&'a str>> {
    plain.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(move |row| row[0] == kind)
}

/// The text between two marks, as it was before it was escaped for XML.
fn inside(text: &str, from: &str, to: &str) -> Option<String> {
    let (_, rest) = text.split_once(from)?;
    let (escaped, _) = rest.split_once(to)?;
    let marks = [("&#45;", "-"), ("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\"")];
    let text = marks.iter().fold(escaped.to_owned(), |text, (from, to)| text.replace(from, to));
    Some(text.replace("&amp;", "&"))
}
