//! The one bridge between CPython's fast calling convention and the entries: four tiny C functions per op (instances of the generics
//! below), one binder of positional and keyword values to parameters, overloads in order, `out=`, and the installation of it all.
//!
//! Safety rests on what CPython promises for METH_FASTCALL|METH_KEYWORDS: `args` holds `n` positional values followed by one per name in
//! `kwnames` (a tuple of str, or null), all borrowed for the length of the call; the interpreter is attached. `Args` never outlives it.
#![allow(unsafe_code)]
use super::arg::{FromArg, Refused};
use super::entry::{self, Entry, Exposed, Fail};
use super::ret::Ret;
use super::special;
use super::{PyTensor, Wrapper};
use crate::dtype::Scalar;
use crate::error::Error;
use crate::tape::{How, Info, Tensor, mode};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi::{self, Py_ssize_t, PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use pyo3::types::PyType;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering::*};

type Fast = unsafe extern "C" fn(*mut PyObject, *const *mut PyObject, Py_ssize_t, *mut PyObject) -> *mut PyObject;
#[derive(Clone, Copy)]
pub struct Calls {
    function: Fast,
    function_: Fast,
    method: Fast,
    method_: Fast,
}
impl Calls {
    pub const fn of<E: Exposed>() -> Self {
        Self { function: function::<E>, function_: function_::<E>, method: method::<E>, method_: method_::<E> }
    }
}
macro_rules! doors { ($($name:ident $style:ident $this:ident => $given:expr;)*) => { $(
    unsafe extern "C" fn $name<E: Exposed>($this: *mut PyObject, args: *const *mut PyObject, n: Py_ssize_t, kw: *mut PyObject) -> *mut PyObject {
        // SAFETY: called by CPython as the file header says.
        unsafe { enter(E::ENTRY, Style::$style, $given, args, n, kw) }
    }
)* } }
doors! {
    function Function _module => std::ptr::null_mut();
    function_ InPlaceFunction _module => std::ptr::null_mut();
    method Method this => this;
    method_ InPlaceMethod this => this;
}
#[derive(Clone, Copy, PartialEq)]
pub enum Style {
    Function,
    Method,
    InPlaceFunction,
    InPlaceMethod,
}
impl Style {
    pub fn method(self) -> bool {
        matches!(self, Style::Method | Style::InPlaceMethod)
    }
    pub fn in_place(self) -> bool {
        matches!(self, Style::InPlaceFunction | Style::InPlaceMethod)
    }
}

/// The class `Tensor`, and the subclass that counts as plain (`nn.Parameter`), by address; and the two as `is_plain` compares them.
static TENSOR: AtomicPtr<PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());
static PARAMETER: AtomicPtr<PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());
static PLAIN_TENSOR: AtomicPtr<PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());
static PLAIN: AtomicPtr<PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());
/// While somebody wants to see every call, no tensor is plain.
pub fn set_plain(on: bool) {
    let class = TENSOR.load(Relaxed);
    PLAIN_TENSOR.store(if on { class } else { std::ptr::null_mut() }, Relaxed);
    PLAIN.store(if on { PARAMETER.load(Relaxed) } else { std::ptr::null_mut() }, Relaxed);
}
/// Is `o` an object of the class `Tensor` itself, or of the subclass that counts as plain?
///
/// # Safety
/// `o` is a live object.
#[inline(always)]
unsafe fn is_plain(o: *mut PyObject) -> bool {
    // SAFETY: live.
    let ty = unsafe { ffi::Py_TYPE(o) };
    ty == PLAIN_TENSOR.load(Relaxed) || ty == PLAIN.load(Relaxed)
}
/// What a value is, to one who wants a tensor.
pub enum Look<'py> {
    Plain(&'py Tensor),
    /// Of a subclass that may intercept.
    Special,
    Other,
}
/// The tensor behind an object, if it is one (of any subclass).
pub fn tensor_of<'a>(o: Borrowed<'a, '_, PyAny>) -> Option<&'a Tensor> {
    plain_tensor(o).or_else(|| o.cast::<PyTensor>().ok().map(|t| t.get().tensor()))
}

/// The tensor behind an object of the class `Tensor` itself (or of the subclass that counts as plain).
#[inline(always)]
pub fn plain_tensor<'a>(o: Borrowed<'a, '_, PyAny>) -> Option<&'a Tensor> {
    // SAFETY: the cast follows a check of the type; the wrapper keeps its tensor as long as it lives.
    unsafe { is_plain(o.as_ptr()).then(|| o.cast_unchecked::<PyTensor>().get().tensor()) }
}
/// The value of a Python float, int or bool; None for everything else, instances of subclasses included.
#[inline]
pub fn exact_number(o: Borrowed<'_, '_, PyAny>) -> Option<Scalar> {
    // SAFETY: a live object, whose type is compared before it is read.
    unsafe {
        let p = o.as_ptr();
        if ffi::PyFloat_CheckExact(p) != 0 {
            return Some(Scalar::Float(ffi::PyFloat_AS_DOUBLE(p)));
        }
        if ffi::PyLong_CheckExact(p) != 0 {
            let mut overflow = 0;
            let v = ffi::PyLong_AsLongLongAndOverflow(p, &mut overflow);
            return (overflow == 0).then_some(Scalar::Int(v));
        }
        (ffi::PyBool_Check(p) != 0).then(|| Scalar::Bool(p == ffi::Py_True()))
    }
}
/// Start, stop and step of a slice, with Python's limits where one is absent.
pub fn unpack_slice(s: &Bound<'_, pyo3::types::PySlice>) -> PyResult<(i64, i64, i64)> {
    let (mut start, mut stop, mut step) = (0, 0, 0);
    // SAFETY: a slice, and three places to write to.
    match unsafe { ffi::PySlice_Unpack(s.as_ptr(), &mut start, &mut stop, &mut step) } {
        0 => Ok((start as i64, stop as i64, step as i64)),
        _ => Err(PyErr::fetch(s.py())),
    }
}
/// The values of one call as CPython handed them over. `this` is null for a free function.
pub struct Given<'py> {
    pub py: Python<'py>,
    this: *mut PyObject,
    args: *const *mut PyObject,
    n: usize,
    names: *mut PyObject,
    named: usize,
    how: Taking,
}
/// How values are taken.
#[derive(Clone, Copy, Default)]
pub struct Taking {
    /// Subclasses of Tensor as tensors.
    pub lax: bool,
    /// 0-d tensors not as numbers: overloads that take tensors come first.
    pub strict: bool,
}
impl<'py> Given<'py> {
    pub fn keyword(&self, k: usize) -> &str {
        assert!(k < self.named);
        // SAFETY: `names` is a tuple of `named` str, which keep their UTF-8 as long as they live. (A lone surrogate gives null: no such parameter.)
        unsafe {
            let mut len = 0;
            let at = ffi::PyUnicode_AsUTF8AndSize(ffi::PyTuple_GET_ITEM(self.names, k as Py_ssize_t), &mut len);
            if at.is_null() {
                ffi::PyErr_Clear();
                return "?";
            }
            std::str::from_utf8_unchecked(std::slice::from_raw_parts(at.cast(), len as usize))
        }
    }
    pub fn this(&self) -> Option<Borrowed<'_, 'py, PyAny>> {
        // SAFETY: null or borrowed for the call.
        unsafe { Borrowed::from_ptr_or_opt(self.py, self.this) }
    }
    /// Positional values, then those of the keywords.
    pub fn values(&self) -> impl Iterator<Item = Borrowed<'_, 'py, PyAny>> {
        // SAFETY: n + named values, borrowed for the call.
        (0..self.n + self.named).map(|k| unsafe { Borrowed::from_ptr(self.py, *self.args.add(k)) })
    }
    /// The positional values.
    pub fn positional_values(&self) -> &[Bound<'py, PyAny>] {
        // SAFETY: n values, borrowed for the call, as `self` is; a `Bound` is a pointer to an object. (No values: the pointer may be null.)
        unsafe { if self.n == 0 { &[] } else { std::slice::from_raw_parts(self.args.cast(), self.n) } }
    }
    /// The keywords with their values.
    pub fn named_values(&self) -> impl Iterator<Item = (&str, Borrowed<'_, 'py, PyAny>)> {
        self.values().skip(self.n).enumerate().map(|(k, v)| (self.keyword(k), v))
    }
    pub fn positional(&self) -> usize {
        self.n
    }
    pub fn keywords(&self) -> usize {
        self.named
    }
}
/// One or (varargs) several adjacent borrowed values.
#[derive(Clone, Copy)]
pub struct Values<'py> {
    py: Python<'py>,
    at: *const *mut PyObject,
    len: u32,
    how: Taking,
}
#[allow(clippy::len_without_is_empty, reason = "never empty")]
impl<'py> Values<'py> {
    #[inline]
    pub fn len(self) -> usize {
        self.len as usize
    }
    pub fn how(self) -> Taking {
        self.how
    }
    #[inline]
    pub fn one(self) -> Borrowed<'py, 'py, PyAny> {
        self.item(0)
    }
    pub fn iter(self) -> impl Iterator<Item = Borrowed<'py, 'py, PyAny>> {
        (0..self.len as usize).map(move |i| self.item(i))
    }
    #[inline]
    fn item(self, i: usize) -> Borrowed<'py, 'py, PyAny> {
        assert!(i < self.len as usize);
        // SAFETY: in range; borrowed for the call (file header).
        unsafe { Borrowed::from_ptr(self.py, *self.at.add(i)) }
    }
    #[inline]
    pub fn tensor(self) -> Look<'py> {
        let o = self.one();
        plain_tensor(o).map_or_else(|| self.other(o), Look::Plain)
    }
    #[cold]
    fn other(self, o: Borrowed<'py, 'py, PyAny>) -> Look<'py> {
        match o.cast::<PyTensor>() {
            Ok(t) if self.how.lax || !special::has_a_say(&o.get_type()) => Look::Plain(t.get().tensor()),
            Ok(_) => Look::Special,
            Err(_) => Look::Other,
        }
    }
    /// Runs `f` on one object as a value.
    pub fn with_one<R>(o: &Bound<'_, PyAny>, how: Taking, f: impl FnOnce(Values<'_>) -> R) -> R {
        let at = o.as_ptr();
        f(Values { py: o.py(), at: &raw const at, len: 1, how })
    }
}
pub const MOST: usize = 20;
/// The values of one call, by parameter. Null: not given.
pub struct Args<'py> {
    py: Python<'py>,
    slots: [*const *mut PyObject; MOST],
    /// The parameter that takes several values, and how many.
    many: (u32, u32),
    how: Taking,
}
impl<'py> Args<'py> {
    #[inline]
    fn values(&self, i: usize) -> Values<'py> {
        debug_assert!(!self.slots[i].is_null());
        Values { py: self.py, at: self.slots[i], len: if self.many.0 as usize == i { self.many.1 } else { 1 }, how: self.how }
    }
    /// A parameter without default: `bind` has seen that it is there.
    #[inline]
    pub fn get<T: FromArg<'py>>(&self, i: usize) -> Result<T, Fail> {
        T::from_arg(self.values(i)).map_err(|e| refused(e, i))
    }
    #[inline]
    pub fn get_or<T: FromArg<'py>>(&self, i: usize, default: impl FnOnce() -> T) -> Result<T, Fail> {
        if self.slots[i].is_null() { Ok(default()) } else { self.get(i) }
    }
}
#[cold]
fn refused(e: Refused, i: usize) -> Fail {
    match e {
        Refused::Type => Fail::Type(i),
        Refused::Element(at, ty) => Fail::Element(i, at, ty),
        Refused::Special => Fail::Special,
        Refused::Error(e) => Fail::Op(e),
    }
}
/// Gives each value its parameter, in `a`, which is empty. Returns the value of `out=`.
#[inline]
fn bind<'py>(e: &'static Entry, style: Style, g: &'py Given<'py>, a: &mut Args<'py>) -> Result<Option<Values<'py>>, Fail> {
    let how = a.how;
    let (mut i, mut out) = (0, None);
    if !g.this.is_null() {
        a.slots[0] = &raw const g.this;
        i = 1;
    }
    for k in 0..g.n {
        // SAFETY: k < n.
        let at = unsafe { g.args.add(k) };
        match e.params.get(i) {
            Some(p) if p.keyword_only => return Err(Fail::TooMany),
            Some(p) if p.kind.varargs && k + 1 < g.n && e.params.get(i + 1).is_none_or(|p| p.keyword_only) => {
                a.slots[i] = at;
                a.many = (i as u32, (g.n - k) as u32);
                break;
            }
            Some(_) => a.slots[i] = at,
            None => return Err(Fail::TooMany),
        }
        i += 1;
    }
    for k in 0..g.named {
        // SAFETY: keyword values follow the positional ones.
        let at = unsafe { g.args.add(g.n + k) };
        let name = g.keyword(k);
        match e.find(name) {
            Some(i) if !a.slots[i].is_null() => return Err(Fail::Twice(i)),
            Some(i) => a.slots[i] = at,
            None if name == "out" && style == Style::Function && e.may_have_out() => {
                out = Some(Values { py: g.py, at, len: 1, how }).filter(|v| !v.one().is_none())
            }
            None => return Err(Fail::Keyword(name.to_owned())),
        }
    }
    for (p, s) in e.params.iter().zip(&a.slots) {
        if s.is_null() && p.default.is_none() {
            return Err(Fail::Missing);
        }
    }
    Ok(out)
}
/// What a call gave: an object that was given (the target of an in-place op, `out=`), or a result.
pub enum Answer<'py> {
    Given(Bound<'py, PyAny>),
    /// What that overload gave.
    New(Ret, &'static Entry),
}
#[inline]
fn attempt<'py>(e: &'static Entry, style: Style, g: &'py Given<'py>, how: Taking) -> Result<Answer<'py>, Fail> {
    let mut args = Args { py: g.py, slots: [std::ptr::null(); MOST], many: (u32::MAX, 1), how };
    if let Some(out) = bind(e, style, g, &mut args)? {
        return into_out(e, &args, out);
    }
    if style.in_place() {
        (e.call)(&args, How::InPlace)?;
        return Ok(Answer::Given(args.values(0).one().to_owned()));
    }
    (e.call)(&args, How::Fresh).map(|r| Answer::New(r, e))
}
/// A call with `out=`: an op writes there itself, the result of anything else is copied.
#[cold]
fn into_out<'py>(e: &'static Entry, args: &Args<'py>, out: Values<'py>) -> Result<Answer<'py>, Fail> {
    let tensor = |v: Values<'py>| match v.tensor() {
        Look::Plain(t) => Ok(t),
        Look::Special => Err(Fail::Special),
        Look::Other => {
            let text = format!("{}(): argument 'out' must be Tensor, not {}", e.name, type_name(v.one()));
            Err(Fail::Op(PyTypeError::new_err(text).into()))
        }
    };
    if e.writes_out() {
        (e.call)(args, How::Into(tensor(out)?))?;
        return Ok(Answer::Given(out.one().to_owned()));
    }
    let refuse = || Fail::Keyword("out".to_owned());
    let several = out.one().cast::<pyo3::types::PyTuple>().ok();
    match ((e.call)(args, How::Fresh)?, several) {
        (Ret::Tensor(t), None) => deliver(e, &t, tensor(out)?)?,
        (Ret::Tuple(items), Some(outs)) if outs.len() == items.len() => {
            for (r, o) in items.into_iter().zip(outs.iter_borrowed()) {
                let Ret::Tensor(t) = r else { return Err(refuse()) };
                deliver(e, &t, tensor_of(o).ok_or_else(refuse)?)?;
            }
        }
        _ => return Err(refuse()),
    }
    Ok(Answer::Given(out.one().to_owned()))
}
/// The op that writes a finished result into `out=`.
static COPIED: Info = Info { node: "Error", op: "out", schema: "out", inputs: &["self"], nondiff: 1, ..crate::ops::views::PLAIN };
/// Writes a result into the user's tensor as an op would.
fn deliver(e: &'static Entry, value: &Tensor, out: &Tensor) -> Result<(), Fail> {
    if mode::grad_enabled() && (value.requires_grad() || out.requires_grad()) {
        return Err(Fail::Op(Box::new(Error::OutGrad { op: e.name })));
    }
    let op = || -> Box<dyn crate::tape::Backward> { unreachable!("nothing is recorded") };
    crate::tape::record(How::Into(out), &COPIED, &[Some(value)], &|x, _| Ok(x[0].expect("it is there").clone()), &op)?;
    Ok(())
}
/// Runs the overloads in order: first as their types say, then with 0-d tensors for numbers.
#[inline]
pub fn run<'py>(first: &'static Entry, style: Style, g: &'py Given<'py>) -> Result<Answer<'py>, Fail> {
    if first.next.get().is_none() {
        return attempt(first, style, g, g.how);
    }
    let mut last = Fail::Missing;
    for strict in [true, false] {
        for e in first.overloads().filter(|e| e.serves(style)) {
            match attempt(e, style, g, Taking { strict, ..g.how }) {
                Err(f @ (Fail::Op(_) | Fail::Special)) => return Err(f),
                Err(f) => last = f,
                ok => return ok,
            }
        }
    }
    Err(last)
}
/// As `run`, with every tensor taken as plain.
pub fn run_lax<'py>(first: &'static Entry, style: Style, g: &Given<'py>) -> PyResult<Answer<'py>> {
    let lax = Given { how: Taking { lax: true, strict: false }, ..*g };
    match run(first, style, &lax) {
        // The lifetime of an answer is the interpreter's, not that of the borrowed values.
        Ok(Answer::Given(o)) => Ok(Answer::Given(o.unbind().into_bound(g.py))),
        Ok(Answer::New(r, e)) => Ok(Answer::New(r, e)),
        Err(f) => Err(failed(first, style, &lax, f)),
    }
}
/// One overload by itself, whatever classes its arguments are of; all outputs, those for backward alone too.
pub fn one<'py>(
    e: &'static Entry,
    style: Style,
    args: &Bound<'py, pyo3::types::PyTuple>,
    kwargs: Option<&Bound<'py, pyo3::types::PyDict>>,
) -> Result<Bound<'py, PyAny>, Fail> {
    let py = args.py();
    let (names, named): (Vec<_>, Vec<_>) = kwargs.iter().flat_map(|k| k.iter()).unzip();
    let names = pyo3::types::PyTuple::new(py, names)?;
    let values: Vec<*mut PyObject> = args.iter_borrowed().map(|v| v.as_ptr()).chain(named.iter().map(|v| v.as_ptr())).collect();
    // The values are borrowed from `args` and `named`, the names from `names`, for the length of this call.
    let g = Given {
        py,
        this: std::ptr::null_mut(),
        args: values.as_ptr(),
        n: args.len(),
        names: names.as_ptr(),
        named: named.len(),
        how: Taking { lax: true, strict: false },
    };
    let hidden = e.info.is_some_and(|i| i.visible != i.outputs.len());
    if hidden {
        mode::ask_whole(true);
    }
    let r = attempt(e, style, &g, g.how);
    if hidden {
        mode::ask_whole(false);
    }
    match r? {
        // The lifetime of an answer is the interpreter's, not that of the borrowed values.
        Answer::Given(o) => Ok(o.unbind().into_bound(py)),
        // an op of the kind that has several outputs, which has one
        Answer::New(Ret::Tuple(mut v), e) if v.len() == 1 && e.info.is_some_and(|i| i.outputs.len() == 1) => {
            Ok(finish(e, v.remove(0), py)?)
        }
        Answer::New(r, e) => Ok(finish(e, r, py)?),
    }
}
/// The Python name under which this style of call is known.
pub fn called(first: &Entry, style: Style) -> &'static str {
    if style.in_place() { first.overloads_in_place().unwrap_or(first.name) } else { first.name }
}
/// Why a call gives nothing.
enum Raise {
    /// The run of a checkpointed region is over.
    Stop,
    Error(PyErr),
}
impl From<PyErr> for Raise {
    fn from(e: PyErr) -> Self {
        Raise::Error(e)
    }
}
impl From<Box<Error>> for Raise {
    fn from(e: Box<Error>) -> Self {
        if matches!(*e, Error::Stop) { Raise::Stop } else { Raise::Error(e.into()) }
    }
}
/// Calls a function that a recomputation may stop: that raises the bare class, and no object is made for it on the way.
pub fn call_stoppable<'py>(
    f: &Bound<'py, PyAny>,
    args: &[Bound<'py, PyAny>],
    kwargs: Option<&Bound<'py, pyo3::types::PyDict>>,
) -> Result<Bound<'py, PyAny>, Box<Error>> {
    let py = f.py();
    // SAFETY: attached. A `Bound` is a pointer to an object, so the slice is an array of borrowed objects. The call gives a new reference,
    // or null with an exception set, which is looked at and cleared or fetched.
    unsafe {
        let kwargs = kwargs.map_or(std::ptr::null_mut(), |k| k.as_ptr());
        let r = ffi::PyObject_VectorcallDict(f.as_ptr(), args.as_ptr().cast(), args.len(), kwargs);
        if !r.is_null() {
            return Ok(Bound::from_owned_ptr(py, r));
        }
        if ffi::PyErr_ExceptionMatches(super::StopRecomputation::type_object_raw(py).cast()) != 0 {
            ffi::PyErr_Clear();
            return Err(Box::new(Error::Stop));
        }
    }
    Err(PyErr::fetch(py).into())
}
/// A builtin that takes its values as they lie.
pub trait Raw {
    const NAME: &'static str;
    /// The signature line that CPython splits off, and the text.
    const DOC: &'static str;
    fn call<'py>(g: &Given<'py>) -> Result<Bound<'py, PyAny>, Box<Error>>;
}
unsafe extern "C" fn raw<R: Raw>(_module: *mut PyObject, args: *const *mut PyObject, n: Py_ssize_t, kw: *mut PyObject) -> *mut PyObject {
    // SAFETY: called by CPython as the file header says.
    unsafe { answer(R::NAME, std::ptr::null_mut(), args, n, kw, |g| Ok(R::call(g)?)) }
}
pub fn add_raw<R: Raw>(m: &Bound<'_, PyModule>) -> PyResult<()> {
    add_function(m, R::NAME, R::DOC, raw::<R>)
}
#[cold]
fn failed(first: &'static Entry, style: Style, g: &Given<'_>, f: Fail) -> PyErr {
    if let Fail::Op(e) = f {
        return e.into();
    }
    let got: Vec<_> = g.values().enumerate().map(|(i, v)| ((i >= g.n).then(|| g.keyword(i - g.n).to_owned()), type_name(v))).collect();
    PyTypeError::new_err(first.explain(called(first, style), style.method(), &f, g.n, &got))
}
pub fn type_name(v: Borrowed<'_, '_, PyAny>) -> String {
    v.get_type().name().map_or("?".into(), |n| n.to_string())
}
#[inline]
fn call<'py>(e: &'static Entry, style: Style, g: &Given<'py>) -> Result<Bound<'py, PyAny>, Raise> {
    if PLAIN_TENSOR.load(Relaxed).is_null() && special::mode_waits() {
        return Ok(special::call(e, style, g)?);
    }
    match run(e, style, g) {
        Ok(Answer::New(Ret::Tensor(t), _)) => Ok(super::wrap(g.py, t)?.into_any()),
        Ok(Answer::New(r, e)) => Ok(finish(e, r, g.py)?),
        Ok(Answer::Given(o)) => Ok(o.unbind().into_bound(g.py)),
        Err(Fail::Special) => Ok(special::call(e, style, g)?),
        Err(Fail::Op(e)) if matches!(*e, Error::Stop) => Err(Raise::Stop),
        Err(f) => match special::foreign(e, style, g)? {
            Some(r) => Ok(r),
            None => Err(Raise::Error(failed(e, style, g, f))),
        },
    }
}
/// Calls the op of this Python name: `x[0]` is `self` of a method, else the first argument.
pub fn by_name<'py>(name: &'static str, style: Style, x: &[&Bound<'py, PyAny>]) -> PyResult<Bound<'py, PyAny>> {
    let Some(e) = entry::named(name.strip_suffix('_').filter(|_| style.in_place()).unwrap_or(name)) else {
        return Err(PyRuntimeError::new_err(format!("there is no op {name}")));
    };
    let all: smallvec::SmallVec<[*mut PyObject; 4]> = x.iter().map(|o| o.as_ptr()).collect();
    let skip = style.method() as usize;
    let this = if skip == 1 { all[0] } else { std::ptr::null_mut() };
    // The values are borrowed from `x` for the length of this call.
    let g = Given {
        py: x[0].py(),
        this,
        args: all[skip..].as_ptr(),
        n: all.len() - skip,
        names: std::ptr::null_mut(),
        named: 0,
        how: Taking::default(),
    };
    call(e, style, &g).map_err(|r| match r {
        Raise::Stop => Box::new(Error::Stop).into(),
        Raise::Error(e) => e,
    })
}
/// A result as an object: the named tuple that the entry asks for, else what its kind gives.
pub fn finish<'py>(e: &'static Entry, r: Ret, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    r.wrap(py, e, &|t| Ok(super::wrap(py, t)?.into_any()))
}
/// As `finish`, with new tensors as instances of `class`.
pub fn finish_as<'py>(e: &'static Entry, r: Ret, py: Python<'py>, class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
    r.wrap(py, e, &|t| match Wrapper::of(&t) {
        Some(w) => special::converted(w.object().bind(py).as_any(), class),
        None => super::tensor::wrap_as(class, t),
    })
}
unsafe fn enter(
    e: &'static Entry,
    style: Style,
    this: *mut PyObject,
    args: *const *mut PyObject,
    n: Py_ssize_t,
    kw: *mut PyObject,
) -> *mut PyObject {
    // SAFETY: as CPython called us.
    unsafe { answer(e.name, this, args, n, kw, |g| call(e, style, g)) }
}
/// What CPython gets from `f`: an object, or null with an exception set.
///
/// # Safety
/// The values are those with which CPython called.
#[inline(always)]
unsafe fn answer(
    name: &'static str,
    this: *mut PyObject,
    args: *const *mut PyObject,
    n: Py_ssize_t,
    kw: *mut PyObject,
    f: impl for<'a, 'py> FnOnce(&'a Given<'py>) -> Result<Bound<'py, PyAny>, Raise>,
) -> *mut PyObject {
    // SAFETY: CPython calls attached; `kw` is null or a tuple that outlives the call.
    let (py, named) = unsafe { (Python::assume_attached(), if kw.is_null() { 0 } else { ffi::PyTuple_GET_SIZE(kw) as usize }) };
    let g = Given { py, this, args, n: n as usize, names: kw, named, how: Taking::default() };
    given(py, name, || f(&g))
}
#[inline(always)]
fn given<'py, T>(py: Python<'py>, name: &'static str, f: impl FnOnce() -> Result<Bound<'py, T>, Raise>) -> *mut PyObject {
    match catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| Err(panicked(name))) {
        Ok(r) => r.into_ptr(),
        Err(Raise::Stop) => {
            // SAFETY: attached; the class lives as long as the module.
            unsafe { ffi::PyErr_SetNone(super::StopRecomputation::type_object_raw(py).cast()) };
            std::ptr::null_mut()
        }
        Err(Raise::Error(e)) => {
            e.restore(py);
            std::ptr::null_mut()
        }
    }
}
/// A binary operator of Python whose usual operands, two plain tensors or one and a number, go straight to the op.
pub trait Operator {
    const NAME: &'static str;
    /// Python's names of it.
    const METHODS: [&'static str; 2];
    fn op(a: &Tensor, b: &Tensor) -> crate::error::Result<Tensor>;
    /// Its place among the operators of a class.
    fn slot(of: &mut ffi::PyNumberMethods) -> &mut Option<ffi::binaryfunc>;
    /// What stood there before: for all other operands.
    fn rest() -> &'static OnceLock<ffi::binaryfunc>;
}
unsafe extern "C" fn operator<O: Operator>(a: *mut PyObject, b: *mut PyObject) -> *mut PyObject {
    // SAFETY: CPython calls attached, with two objects that it holds for the length of the call.
    unsafe {
        let py = Python::assume_attached();
        let (x, y) = (Borrowed::from_ptr(py, a), Borrowed::from_ptr(py, b));
        if let Some(x) = plain_tensor(x) {
            if let Some(y) = plain_tensor(y) {
                return given(py, O::NAME, || Ok(super::wrap(py, O::op(x, y)?)?));
            }
            if let Some(n) = exact_number(y) {
                return given(py, O::NAME, || Ok(super::wrap(py, O::op(x, &crate::ops::number(n)?)?)?));
            }
        }
        match O::rest().get() {
            Some(f) => f(a, b),
            None => py.NotImplemented().into_ptr(),
        }
    }
}
/// Puts an operator before what the class has in its place, in the descriptors too: subclasses take it from there.
pub fn put_operator<O: Operator>(class: &Bound<'_, PyType>) -> PyResult<()> {
    // SAFETY: a heap class has a table of operators; the descriptors' type is compared before they are read.
    unsafe {
        let slot = O::slot(&mut *(*class.as_type_ptr()).tp_as_number);
        let Some(old) = slot.replace(operator::<O>) else { return Err(PyRuntimeError::new_err("an operator is missing")) };
        let _ = O::rest().set(old);
        for name in O::METHODS {
            let d = class.getattr(name)?;
            if ffi::Py_TYPE(d.as_ptr()) == &raw mut ffi::PyWrapperDescr_Type {
                let d = d.as_ptr().cast::<ffi::PyWrapperDescrObject>();
                if (*d).d_wrapped == old as *mut std::ffi::c_void {
                    (*d).d_wrapped = operator::<O> as *mut std::ffi::c_void;
                }
            }
        }
    }
    Ok(())
}
#[cold]
fn panicked(name: &str) -> Raise {
    PyRuntimeError::new_err(format!("{name}(): internal error: the op panicked (a bug in this library)")).into()
}

/// A definition that lives as long as the objects made from it: for ever.
fn define(name: &str, doc: &str, f: Fast) -> PyResult<*mut ffi::PyMethodDef> {
    let (name, doc) = (CString::new(name)?, CString::new(doc)?);
    Ok(Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: name.into_raw(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: f },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: doc.into_raw(),
    })))
}
fn add_function(m: &Bound<'_, PyModule>, name: &str, doc: &str, f: Fast) -> PyResult<()> {
    // SAFETY: the definition is leaked, as it must outlive the function; the call returns a new reference or null.
    let f = unsafe { Bound::from_owned_ptr_or_err(m.py(), ffi::PyCFunction_NewEx(define(name, doc, f)?, m.as_ptr(), m.name()?.as_ptr()))? };
    m.add(name, f)
}
fn add_method(class: &Bound<'_, PyType>, name: &str, doc: &str, f: Fast) -> PyResult<()> {
    // SAFETY: as `add_function`.
    let d = unsafe { Bound::from_owned_ptr_or_err(class.py(), ffi::PyDescr_NewMethod(class.as_type_ptr(), define(name, doc, f)?))? };
    class.setattr(name, d)
}
/// Makes the builtins and method descriptors of every entry. Overloads stand in the order of their blocks in their file.
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let class = m.py().get_type::<PyTensor>();
    TENSOR.store(PyTensor::type_object_raw(m.py()), Relaxed);
    set_plain(true);
    m.add_function(wrap_pyfunction!(_register_parameter_class, m)?)?;
    for e in entry::link() {
        let on = e.on_any();
        if on.function {
            add_function(m, e.name, &e.docstring(e.name, false), e.c.function)?;
        }
        if on.private {
            let name = if e.name.starts_with('_') { e.name.to_owned() } else { format!("_{}", e.name) };
            add_function(m, &name, &e.docstring(e.name, false), e.c.function)?;
        }
        if let Some(room) = on.room {
            add_function(&submodule(m, room)?, e.name, &e.docstring(e.name, false), e.c.function)?;
        }
        if on.method {
            add_method(&class, e.name, &e.docstring(e.name, true), e.c.method)?;
        }
        if let Some(name) = e.overloads_in_place() {
            let (function, method) = (e.docstring(name, false), e.docstring(name, true));
            if on.function {
                add_function(m, name, &function, e.c.function_)?;
            }
            if let Some(room) = on.room {
                add_function(&submodule(m, room)?, name, &function, e.c.function_)?;
            }
            if on.method {
                add_method(&class, name, &method, e.c.method_)?;
            }
        }
    }
    Ok(())
}
/// `_C._<name>`, made when first asked for.
fn submodule<'py>(m: &Bound<'py, PyModule>, name: &str) -> PyResult<Bound<'py, PyModule>> {
    let attribute = format!("_{name}");
    if let Ok(sub) = m.getattr(&*attribute) {
        return Ok(sub.cast_into::<PyModule>()?);
    }
    let sub = PyModule::new(m.py(), &format!("{}.{attribute}", m.name()?))?;
    m.add(&attribute, &sub)?;
    Ok(sub)
}
#[pyfunction]
fn _register_parameter_class(cls: &Bound<'_, PyType>) -> PyResult<()> {
    if !cls.is_subclass_of::<PyTensor>()? {
        return Err(PyTypeError::new_err("a parameter class is a subclass of Tensor"));
    }
    // The class must outlive the pointer.
    std::mem::forget(cls.clone());
    PARAMETER.store(cls.as_type_ptr(), Relaxed);
    set_plain(true);
    Ok(())
}
