use std::ptr;

use pagefork_layout::module::{ElementSegment, Export, Item, ModuleInfo, TableType, ValType};
use pagefork_layout::reference::FuncRef;
use pagefork_layout::trap::TrapCode;

use crate::error::{LimitError, Result, UsageError};
use crate::group::Place;
use crate::instantiate::spawn_alone;
use crate::limits;
use crate::module::Module;
use crate::store::{AsContext, AsContextMut, StoreId, StoreInner};
use crate::value::{Cell, Val};

/// A table of a store.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Func, RefType, Store, Table, TableType, Val};
///
/// let mut store = Store::new(&Engine::default(), ());
/// let ty = TableType::new(RefType::FUNCREF, 2, None);
/// let table = Table::new(&mut store, ty, Val::FuncRef(None))?;
/// let function = Func::wrap(&mut store, || 7i32);
/// table.set(&mut store, 1, function.into())?;
/// assert!(table.get(&mut store, 1).is_some_and(|element| element.funcref().flatten().is_some()));
/// assert!(table.get(&mut store, 2).is_none());
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Table {
    store: StoreId,
    place: Place,
}

impl Table {
    /// Makes a table of the host, which has a slot of its own, full of `element`.
    ///
    /// # Errors
    /// If the type is not possible, the element is of another type or store, a
    /// limit of the store is met, or the system refuses address space.
    pub fn new(mut store: impl AsContextMut, ty: TableType, element: Val) -> Result<Self> {
        let store = &mut store.as_context_mut().0.inner;
        if ty.maximum.is_some_and(|maximum| maximum < ty.minimum) {
            let maximum = ty.maximum.unwrap_or(u64::MAX);
            let what = format!("a table of {} to {maximum} times {}", ty.minimum, ty.element);
            return Err(UsageError::InvalidType(what).into());
        }
        element.check_type(store, ValType::Ref(ty.element), || "the element".to_owned())?;
        let word = element.to_cell(store, store.next_ordinal())?.low;
        let info = ModuleInfo {
            tables: vec![ty],
            exports: vec![Export { name: "table".to_owned(), item: Item::Table(0) }],
            ..ModuleInfo::default()
        };
        let module = Module::without_code(&store.engine, info)?;
        let ordinal = spawn_alone(store, &module)?;
        let place = Place { ordinal, own_index: 0 };
        store.instance_mut(ordinal).initial_word = word;
        if word != 0 {
            store.put_elements(place, 0, (0..ty.minimum).map(|_| word));
        }
        Ok(Self::from_place(store, place))
    }

    pub(crate) fn from_place(store: &StoreInner, place: Place) -> Self {
        Self { store: store.id, place }
    }

    /// # Errors
    /// If the table is of another store.
    pub(crate) fn place(&self, store: &StoreInner) -> Result<Place> {
        store.check(self.store, "table").map(|()| self.place)
    }

    fn place_or_panic(&self, store: &StoreInner) -> Place {
        assert!(self.store == store.id, "a table of one store was used with another store");
        self.place
    }

    /// The table's type, with the present length as its minimum.
    ///
    /// # Panics
    /// If the table is of another store.
    pub fn ty(&self, store: impl AsContext) -> TableType {
        let store = &store.as_context().0.inner;
        store.table_type(self.place_or_panic(store))
    }

    /// The table's length, in elements.
    ///
    /// # Panics
    /// If the table is of another store.
    pub fn size(&self, store: impl AsContext) -> u64 {
        let store = &store.as_context().0.inner;
        store.table_length(self.place_or_panic(store))
    }

    /// The element `index`; `None` beyond the end.
    ///
    /// # Panics
    /// If the table is of another store.
    pub fn get(&self, mut store: impl AsContextMut, index: u64) -> Option<Val> {
        let store = &store.as_context_mut().0.inner;
        let place = self.place_or_panic(store);
        if index >= store.table_length(place) {
            return None;
        }
        // SAFETY: the element is within the table.
        let word = unsafe { store.element(place, index).read() };
        let ty = store.table_type(place).element;
        Some(Val::from_cell(Cell::from_u64(word), ValType::Ref(ty), store, place.ordinal))
    }

    /// Sets the element `index`.
    ///
    /// # Errors
    /// If it is beyond the end, or the value is of another type or store.
    pub fn set(&self, store: impl AsContextMut, index: u64, element: Val) -> Result<()> {
        self.fill(store, index, element, 1)
    }

    /// Sets `length` elements from `start` on.
    ///
    /// # Errors
    /// If they are not all within the table, or the value is of another type or
    /// store; nothing is set then.
    pub fn fill(
        &self,
        mut store: impl AsContextMut,
        start: u64,
        element: Val,
        length: u64,
    ) -> Result<()> {
        let store = &mut store.as_context_mut().0.inner;
        let place = self.place(store)?;
        let ty = ValType::Ref(store.table_type(place).element);
        element.check_type(store, ty, || "the element".to_owned())?;
        let word = element.to_cell(store, place.ordinal)?.low;
        let end = start.saturating_add(length);
        store.table_fill_stored(place, start, word, length).map_err(|_| {
            UsageError::OutsideTable { start, end, length: store.table_length(place) }.into()
        })
    }

    /// Makes the table `delta` elements longer, which are all `element`; returns
    /// the length before.
    ///
    /// # Errors
    /// If that is beyond the table's maximum, the room that its slot has, or the
    /// store's limit, or the value is of another type or store.
    pub fn grow(&self, mut store: impl AsContextMut, delta: u64, element: Val) -> Result<u64> {
        let store = &mut store.as_context_mut().0.inner;
        let place = self.place(store)?;
        let ty = ValType::Ref(store.table_type(place).element);
        element.check_type(store, ty, || "the element".to_owned())?;
        let word = element.to_cell(store, place.ordinal)?.low;
        Ok(store.table_grow_stored(place, delta, word)?)
    }
}

impl StoreInner {
    pub(crate) fn table_type(&self, place: Place) -> TableType {
        let module = &self.instance(place.ordinal).module;
        let info = module.info();
        let declared = info.tables[(info.imported_tables + place.own_index) as usize];
        let element = module.engine_ref_type(declared.element);
        TableType { element, minimum: self.table_length(place), ..declared }
    }

    /// How many elements the longest table has that the instance defines.
    pub(crate) fn table_elements(&self, ordinal: u32) -> u64 {
        let count = self.instance(ordinal).module.layout().table_capacities.len() as u32;
        let lengths = (0..count).map(|own_index| self.table_length(Place { ordinal, own_index }));
        lengths.max().unwrap_or(0)
    }

    pub(crate) fn table_length(&self, place: Place) -> u64 {
        // SAFETY: the word is in the state zone.
        unsafe { self.table_length_word(place).read() }
    }

    fn table_length_word(&self, place: Place) -> *mut u64 {
        let instance = self.instance(place.ordinal);
        instance.word(instance.module.layout().state_parts.table_length(place.own_index))
    }

    /// The address of an element; only those within the table's room are in its
    /// zone.
    fn element(&self, place: Place, index: u64) -> *mut u64 {
        let instance = self.instance(place.ordinal);
        instance.at(instance.module.layout().table_element(place.own_index, index)).cast()
    }

    /// Writes elements, as they are stored, from `start` on. They must be within
    /// the table's room.
    pub(crate) fn put_elements(
        &mut self,
        place: Place,
        start: u64,
        words: impl Iterator<Item = u64>,
    ) {
        self.note_writer();
        let capacity = self.table_capacity(place);
        for (index, word) in (start..).zip(words) {
            assert!(index < capacity, "elements are checked before they are written");
            // SAFETY: the element is within the table's room.
            unsafe { self.element(place, index).write(word) };
        }
    }

    /// All elements, as they are stored.
    pub(crate) fn table_words(&self, place: Place) -> impl Iterator<Item = u64> {
        let length = self.table_length(place);
        // SAFETY: the elements are within the table.
        (0..length).map(move |index| unsafe { self.element(place, index).read() })
    }

    fn table_capacity(&self, place: Place) -> u64 {
        let layout = self.instance(place.ordinal).module.layout();
        layout.table_capacities[place.own_index as usize]
    }

    /// # Errors
    /// If the elements `start..start + length` are not all within the table.
    pub(crate) fn check_elements(
        &self,
        place: Place,
        start: u64,
        length: u64,
    ) -> Result<(), TrapCode> {
        match start.checked_add(length) {
            Some(end) if end <= self.table_length(place) => Ok(()),
            _ => Err(TrapCode::TableOutOfBounds),
        }
    }

    /// The word of a reference from a place of the instance `from` as it is stored
    /// in a table.
    fn stored(&self, table: Place, word: u64, from: u32) -> u64 {
        match ValType::Ref(self.table_type(table).element).has_owner() {
            true => FuncRef(word).absolute(from).relative(table.ordinal).0,
            false => word,
        }
    }

    /// `table.fill` in the instance `caller`, all or nothing.
    pub(crate) fn table_fill(
        &mut self,
        caller: u32,
        table: Place,
        start: u64,
        element: u64,
        length: u64,
    ) -> Result<(), TrapCode> {
        let word = self.stored(table, element, caller);
        self.table_fill_stored(table, start, word, length)
    }

    fn table_fill_stored(
        &mut self,
        table: Place,
        start: u64,
        word: u64,
        length: u64,
    ) -> Result<(), TrapCode> {
        self.check_elements(table, start, length)?;
        self.put_elements(table, start, (0..length).map(|_| word));
        Ok(())
    }

    /// `table.grow` in the instance `caller`.
    pub(crate) fn table_grow(
        &mut self,
        caller: u32,
        table: Place,
        delta: u64,
        element: u64,
    ) -> Result<u64, LimitError> {
        let word = self.stored(table, element, caller);
        self.table_grow_stored(table, delta, word)
    }

    fn table_grow_stored(
        &mut self,
        table: Place,
        delta: u64,
        word: u64,
    ) -> Result<u64, LimitError> {
        let old = self.table_length(table);
        let new = old.saturating_add(delta);
        // No table has room for more than its maximum.
        let (what, capacity) = ("elements of a table", self.table_capacity(table));
        let ty = self.table_type(table);
        let numbered = if ty.table64 { u64::MAX } else { u32::MAX.into() };
        let source = limits::source_of(capacity, ty.maximum, numbered);
        limits::check_of(source, what, new, capacity)?;
        limits::check(what, new, self.limits.table_elements)?;
        self.put_elements(table, old, (0..delta).map(|_| word));
        // SAFETY: the word is in the state zone.
        unsafe { self.table_length_word(table).write(new) };
        Ok(old)
    }

    /// `table.copy`, all or nothing.
    pub(crate) fn table_copy(
        &mut self,
        (to, from): (Place, Place),
        destination: u64,
        source: u64,
        length: u64,
    ) -> Result<(), TrapCode> {
        self.check_elements(from, source, length)?;
        self.check_elements(to, destination, length)?;
        if length == 0 {
            return Ok(());
        }
        if to.ordinal == from.ordinal {
            // Elements lie downwards: the last one has the lowest address.
            let last = length - 1;
            let from = self.element(from, source + last);
            let to = self.element(to, destination + last);
            // SAFETY: all elements are within their tables; they may overlap.
            unsafe { ptr::copy(from, to, length as usize) };
            return Ok(());
        }
        for i in 0..length {
            // SAFETY: both elements are within their tables.
            unsafe {
                let word = self.element(from, source + i).read();
                self.element(to, destination + i).write(self.stored(to, word, from.ordinal));
            }
        }
        Ok(())
    }

    /// `table.init` with a segment of the instance `ordinal`, all or nothing.
    pub(crate) fn table_init(
        &mut self,
        ordinal: u32,
        table: Place,
        elements: &ElementSegment,
        destination: u64,
        source: u64,
        length: u64,
    ) -> Result<(), TrapCode> {
        self.check_elements(table, destination, length)?;
        let end = source.checked_add(length);
        let end = end.filter(|end| *end <= elements.items.len() as u64);
        let end = end.ok_or(TrapCode::TableOutOfBounds)?;
        for (item, i) in elements.items[source as usize..end as usize].iter().zip(0..) {
            let word = self.constant(ordinal, item, ValType::Ref(elements.element));
            let word = self.stored(table, word, ordinal);
            // SAFETY: the element is within the table.
            unsafe { self.element(table, destination + i).write(word) };
        }
        Ok(())
    }
}
