//! The operations as `torch.ops.aten` names them, made from the declarations when somebody first asks: overloads (`aten.add.Tensor`), their
//! schemas, packets of overloads. Knows nothing of modes; `dispatch.rs` finds here what an op is called.
//!
//! An entry gives one overload for each way of giving a result that it has (a new tensor, in place, `out=`) and each name in its schema
//! clause. An overload is one Python object for the life of the process, so `func is torch.ops.aten.mm.default` holds.
use super::call::{self, Style};
use super::entry::{self, Entry, Fail, literal};
use crate::tape::Info;
use pyo3::exceptions::{PyAttributeError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PySet, PyTuple};
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::sync::OnceLock;

/// Where the result goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Fresh,
    InPlace,
    Out,
}
/// For which calls a further name of a schema clause holds.
enum When {
    Always,
    /// An input is a Python number.
    Numbers,
    /// These parameters, which it lacks, have their defaults.
    Without(Vec<usize>),
}
pub struct Overload {
    pub entry: &'static Entry,
    pub form: Form,
    base: String,
    /// Empty: `default`.
    name: String,
    when: When,
    /// Places of its parameters in the entry's.
    pub params: Vec<usize>,
    defaults: PyOnceLock<Vec<Option<Py<PyAny>>>>,
    object: PyOnceLock<Py<PyOverload>>,
}
struct Registry {
    by_info: HashMap<(usize, Form), Vec<&'static Overload>, rustc_hash::FxBuildHasher>,
    by_base: BTreeMap<String, Vec<&'static Overload>>,
}
impl std::hash::Hash for Form {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        (*self as u8).hash(h)
    }
}
/// `add.Tensor` as base and overload.
fn split(schema: &str) -> (&str, &str) {
    schema.split_once('.').unwrap_or((schema, ""))
}
/// The names of a schema clause, and when they hold.
fn names(e: &Entry, clause: &'static str) -> Vec<(&'static str, When)> {
    clause
        .split("; ")
        .map(|part| match (part.split_once(" without "), part.strip_suffix(" for numbers")) {
            (Some((name, lacks)), _) => {
                let at = |p: &str| e.params.iter().position(|q| q.name == p).expect("a schema clause names parameters of its op");
                (name, When::Without(lacks.split(' ').map(at).collect()))
            }
            (None, Some(name)) => (name, When::Numbers),
            (None, None) => (part, When::Always),
        })
        .collect()
}
fn registry() -> &'static Registry {
    static ALL: OnceLock<Registry> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut r = Registry { by_info: HashMap::default(), by_base: BTreeMap::new() };
        // kernels first, so that a composition does not take their names
        let all = || entry::link().iter().flat_map(|e| e.overloads());
        all().for_each(|e| add(&mut r, e, true));
        all().for_each(|e| add(&mut r, e, false));
        r
    })
}
fn add(r: &mut Registry, e: &'static Entry, kernels: bool) {
    if e.info.is_some() != kernels || e.name.starts_with("__") {
        return;
    }
    // a function that is a kernel takes `out` as a parameter
    let has_out = kernels && e.params.iter().any(|p| p.name == "out");
    let writes_self = e.takes_self() && e.name.ends_with('_') && !e.name.ends_with("__");
    let clause: &'static str = match e.info {
        Some(i) => i.schema,
        None => e.name.trim_end_matches('_'),
    };
    for (schema, when) in names(e, clause) {
        let (base, name) = split(schema);
        // a composition that shares its Python name with others is told apart by its name in Rust
        let own = if e.info.is_some() { name } else { e.rust.strip_prefix(e.name).map_or("", |s| s.trim_matches('_')) };
        let mut forms: Vec<Form> = Vec::new();
        if writes_self {
            forms.push(Form::InPlace);
        } else {
            forms.push(Form::Fresh);
            if e.inplace.is_some() || (e.takes_how && !e.on.function && !e.on.method && e.info.is_some_and(|i| !i.view)) {
                forms.push(Form::InPlace);
            }
            if e.writes_out() || has_out {
                forms.push(Form::Out);
            }
        }
        for form in forms {
            let base = if form == Form::InPlace { format!("{base}_") } else { base.to_owned() };
            let name = match (form, own) {
                (Form::Out, "" | "Tensor" | "self") => "out".to_owned(),
                (Form::Out, n) => format!("{n}_out"),
                (_, n) => n.to_owned(),
            };
            let when = match &when {
                When::Always => When::Always,
                When::Numbers => When::Numbers,
                When::Without(w) => When::Without(w.clone()),
            };
            let lacks = |i: &usize| {
                matches!(&when, When::Without(w) if w.contains(i))
                    || e.params[*i].name == crate::tape::dispatch::REQUIRES_GRAD
                    || (kernels && e.params[*i].name == "out")
            };
            let params = (0..e.params.len()).filter(|i| !lacks(i)).collect();
            let known = r.by_base.entry(base.clone()).or_default();
            let taken = known.iter().any(|o| o.name == name);
            // methods that write in place are the other face of a kernel that does
            if !kernels && (taken || (writes_self && !known.is_empty())) {
                continue;
            }
            let o: &'static Overload = Box::leak(Box::new(Overload {
                entry: e,
                form,
                base,
                name,
                when,
                params,
                defaults: PyOnceLock::new(),
                object: PyOnceLock::new(),
            }));
            // of two blocks that share a schema name the first is found under it
            if !taken {
                known.push(o);
            }
            if let Some(i) = e.info {
                r.by_info.entry((std::ptr::from_ref::<Info>(i) as usize, form)).or_default().push(o);
            }
        }
    }
}
/// Is anything known under this name?
pub fn knows(info: &'static Info, form: Form) -> bool {
    registry().by_info.contains_key(&(std::ptr::from_ref(info) as usize, form))
}
/// What a call of the op is called. `numbers`: an input is given as a Python number; `default(i)`: parameter `i` has its default.
pub fn find(
    info: &'static Info,
    form: Form,
    numbers: &dyn Fn(&'static Overload) -> bool,
    default: &dyn Fn(&'static Overload, usize) -> bool,
) -> Option<&'static Overload> {
    let all = registry().by_info.get(&(std::ptr::from_ref(info) as usize, form))?;
    let holds = |o: &&&'static Overload| match &o.when {
        When::Always => false,
        When::Numbers => numbers(o),
        When::Without(w) => w.iter().all(|&i| default(o, i)),
    };
    all.iter().find(holds).or(all.first()).copied()
}
impl Overload {
    pub fn shown(&self) -> &str {
        if self.name.is_empty() { "default" } else { &self.name }
    }
    /// `aten::add.Tensor`
    pub fn qualified(&self) -> String {
        if self.name.is_empty() { format!("aten::{}", self.base) } else { format!("aten::{}.{}", self.base, self.name) }
    }
    pub fn object<'py>(&'static self, py: Python<'py>) -> PyResult<Bound<'py, PyOverload>> {
        let make = || Py::new(py, PyOverload { o: self, schema: PyOnceLock::new() });
        Ok(self.object.get_or_try_init(py, make)?.bind(py).clone())
    }
    /// The default of the entry's parameter `i`, if it has one that can be written in Python.
    pub fn default(&self, py: Python<'_>, i: usize) -> Option<&Py<PyAny>> {
        let value = |text: &str| -> Option<Py<PyAny>> {
            let text = CString::new(literal(text).trim_start_matches('&')).ok()?;
            let v = py.eval(&text, None, None).ok()?;
            match v.cast::<PyTuple>() {
                Ok(t) => Some(PyList::new(py, t.iter()).ok()?.into_any().unbind()),
                Err(_) => Some(v.unbind()),
            }
        };
        let all = self.defaults.get_or_init(py, || self.entry.params.iter().map(|p| p.default.and_then(value)).collect());
        all[i].as_ref()
    }
    fn view(&self) -> bool {
        self.entry.info.is_some_and(|i| i.view)
    }
    fn many(&self) -> bool {
        self.entry.info.is_some_and(|i| i.outputs.is_empty())
    }
    fn arguments(&self, py: Python<'_>) -> PyResult<Vec<Py<Argument>>> {
        let e = self.entry;
        let mut all = Vec::new();
        for (nth, &i) in self.params.iter().enumerate() {
            let p = &e.params[i];
            // a default before a parameter without one cannot be used
            let usable = p.keyword_only || self.params[nth..].iter().map(|&j| &e.params[j]).all(|q| q.keyword_only || q.default.is_some());
            let number = matches!(self.when, When::Numbers) && p.kind.hint == "Tensor | Number";
            let alias = (nth == 0).then(|| match (self.form, self.view()) {
                (Form::InPlace, _) => Some(AliasInfo { set: "a", is_write: true, many: false }),
                (_, true) => Some(AliasInfo { set: "a", is_write: false, many: self.many() }),
                _ => None,
            });
            all.push(Argument {
                name: p.name,
                kind: if number { "Scalar".to_owned() } else { type_name(p) },
                default: self.default(py, i).filter(|_| usable).map(|d| d.clone_ref(py)),
                kwarg_only: p.keyword_only,
                is_out: false,
                alias: alias.flatten(),
            });
        }
        if self.form == Form::Out {
            let alias = Some(AliasInfo { set: "a", is_write: true, many: false });
            all.push(Argument { name: "out", kind: "Tensor".to_owned(), default: None, kwarg_only: true, is_out: true, alias });
        }
        all.into_iter().map(|a| Py::new(py, a)).collect()
    }
    fn returns(&self, py: Python<'_>) -> PyResult<Vec<Py<Argument>>> {
        let e = self.entry;
        let alias = match (self.form, self.view()) {
            (Form::InPlace | Form::Out, _) => Some(AliasInfo { set: "a", is_write: true, many: false }),
            (_, true) => Some(AliasInfo { set: "a", is_write: false, many: false }),
            _ => None,
        };
        let one = |name: &'static str, kind: &str, alias: Option<AliasInfo>| {
            Py::new(py, Argument { name, kind: kind.to_owned(), default: None, kwarg_only: false, is_out: false, alias })
        };
        if self.many() {
            return Ok(vec![one("", "Tensor[]", alias)?]);
        }
        match (e.returns, e.info) {
            ("Tensors", Some(i)) => i.outputs.iter().map(|&n| one(if n.starts_with("result") { "" } else { n }, "Tensor", alias)).collect(),
            ("Tensors" | "Vec<Tensor>", None) => Ok(vec![one("", "Tensor[]", None)?]),
            ("(Tensor, Tensor)", _) => Ok(vec![one("", "Tensor", None)?, one("", "Tensor", None)?]),
            ("bool", _) => Ok(vec![one("", "bool", None)?]),
            ("Scalar", _) => Ok(vec![one("", "Scalar", None)?]),
            ("i64" | "usize", _) => Ok(vec![one("", "int", None)?]),
            ("f64", _) => Ok(vec![one("", "float", None)?]),
            ("()", _) => Ok(Vec::new()),
            _ => Ok(vec![one("", "Tensor", alias)?]),
        }
    }
    fn schema(&self, py: Python<'_>) -> PyResult<Schema> {
        Ok(Schema {
            name: format!("aten::{}", self.base),
            overload_name: self.name.clone(),
            arguments: self.arguments(py)?,
            returns: self.returns(py)?,
        })
    }
    /// Calls this overload; the values are bound to its parameters and nothing else is tried.
    fn call<'py>(&'static self, args: &Bound<'py, PyTuple>, kwargs: Option<&Bound<'py, PyDict>>) -> Result<Bound<'py, PyAny>, Fail> {
        let e = self.entry;
        if self.form == Form::Out && kwargs.is_none_or(|k| !k.contains("out").unwrap_or(false)) {
            return Err(Fail::Missing);
        }
        let style = if self.form == Form::InPlace && e.takes_how { Style::InPlaceFunction } else { Style::Function };
        call::one(e, style, args, kwargs)
    }
    fn failed(&'static self, f: Fail, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyErr {
        let (e, py) = (self.entry, args.py());
        if let Fail::Op(e) = f {
            return e.into();
        }
        let mut got: Vec<_> = args.iter().map(|v| (None, call::type_name(v.as_borrowed()))).collect();
        got.extend(kwargs.iter().flat_map(|k| k.iter()).map(|(k, v)| (Some(k.to_string()), call::type_name(v.as_borrowed()))));
        let name = format!("aten::{}", self.base);
        let text = match &f {
            Fail::Missing => {
                let given = |p: &entry::Param| got.iter().any(|(k, _)| k.as_deref() == Some(p.name));
                let lacking = self.params.iter().map(|&i| &e.params[i]).skip(args.len()).find(|p| p.default.is_none() && !given(p));
                format!("{name}() is missing value for argument '{}'", lacking.map_or("out", |p| p.name))
            }
            f => e.explain_one(&name, f, args.len(), &got),
        };
        let declared = self.schema(py).and_then(|s| s.text(py)).unwrap_or_default();
        PyRuntimeError::new_err(format!("{text}. Declaration: {declared}"))
    }
}
/// The type of a parameter as a schema writes it.
fn type_name(p: &entry::Param) -> String {
    let optional = if p.default == Some("None") || p.kind.hint.ends_with("| None") { "?" } else { "" };
    // lengths and places may be symbols in torch, numbers of dimensions may not
    let counted = |name: &str| {
        !(name.starts_with("dim") || name.starts_with("axis") || name.contains("diagonal") || matches!(name, "offset" | "reduction"))
    };
    let base = match (p.kind.shown, p.kind.hint) {
        ("int", _) if counted(p.name) => "SymInt",
        ("int", _) => "int",
        ("tuple of ints", _) if counted(p.name) => "SymInt[]",
        ("tuple of ints", _) => "int[1]",
        ("tuple of Tensors", "Sequence[Tensor | None]") => return "Tensor?[]".to_owned(),
        ("tuple of Tensors", _) => "Tensor[]",
        ("tuple of floats", _) => "float[]",
        ("tuple of bools", _) => "bool[]",
        ("Number", _) => "Scalar",
        ("torch.dtype", _) => "ScalarType",
        ("torch.device", _) => "Device",
        ("torch.layout", _) => "Layout",
        ("torch.Generator" | "Generator", _) => "Generator",
        ("str", _) if p.name == "memory_format" => "MemoryFormat",
        (shown, _) => shown,
    };
    format!("{base}{optional}")
}

/// An operation of `torch.ops`: one overload, which can be called, compared and printed.
#[pyclass(name = "OpOverload", module = "stowgrad._ops", frozen, weakref)]
pub struct PyOverload {
    pub o: &'static Overload,
    schema: PyOnceLock<Py<Schema>>,
}
#[pymethods]
impl PyOverload {
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(&self, args: &Bound<'py, PyTuple>, kwargs: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        self.o.call(args, kwargs).map_err(|f| self.o.failed(f, args, kwargs))
    }
    fn __repr__(&self) -> String {
        format!("<OpOverload(op='aten.{}', overload='{}')>", self.o.base, self.o.shown())
    }
    fn __str__(&self) -> String {
        format!("aten.{}.{}", self.o.base, self.o.shown())
    }
    #[getter]
    fn __name__(&self) -> String {
        format!("{}.{}", self.o.base, self.o.shown())
    }
    #[getter]
    fn __qualname__(&self) -> String {
        self.__name__()
    }
    /// `aten::add.Tensor`.
    fn name(&self) -> String {
        self.o.qualified()
    }
    #[getter]
    fn namespace(&self) -> &'static str {
        "aten"
    }
    #[getter]
    fn _opname(&self) -> &str {
        &self.o.base
    }
    #[getter]
    fn _overloadname(&self) -> &str {
        self.o.shown()
    }
    /// Whether its result is a view of its first argument.
    #[getter]
    fn is_view(&self) -> bool {
        self.o.view()
    }
    #[getter]
    fn tags(&self) -> Vec<u8> {
        Vec::new()
    }
    /// What is called: the overload itself.
    #[getter]
    fn op<'py>(slf: Bound<'py, Self>) -> Bound<'py, Self> {
        slf
    }
    /// Whether it draws random numbers.
    #[getter]
    fn _draws(&self) -> bool {
        self.o.entry.params.iter().any(|p| p.name == "generator")
    }
    #[getter]
    fn overloadpacket<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyPacket>> {
        packet(py, &self.o.base)?.ok_or_else(|| PyAttributeError::new_err(format!("there is no operation aten.{}", self.o.base)))
    }
    #[getter]
    fn _schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Schema>> {
        Ok(self.schema.get_or_try_init(py, || Py::new(py, self.o.schema(py)?))?.bind(py).clone())
    }
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String, String))> {
        let o = slf.get().o;
        Ok((slf.py().import("stowgrad._C")?.getattr("_overload")?, (o.base.clone(), o.name.clone())))
    }
    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }
}
/// All overloads of one operation: `torch.ops.aten.add`.
#[pyclass(name = "OpOverloadPacket", module = "stowgrad._ops", frozen, weakref)]
pub struct PyPacket {
    base: String,
    all: Vec<&'static Overload>,
}
fn packet<'py>(py: Python<'py>, base: &str) -> PyResult<Option<Bound<'py, PyPacket>>> {
    static MADE: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let made = MADE.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
    if let Some(p) = made.get_item(base)? {
        return Ok(Some(p.cast_into::<PyPacket>()?));
    }
    let Some(all) = registry().by_base.get(base).filter(|a| !a.is_empty()) else { return Ok(None) };
    let p = Bound::new(py, PyPacket { base: base.to_owned(), all: all.clone() })?;
    made.set_item(base, &p)?;
    Ok(Some(p))
}
#[pymethods]
impl PyPacket {
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(&self, args: &Bound<'py, PyTuple>, kwargs: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        let mut first = None;
        for o in &self.all {
            match o.call(args, kwargs) {
                Err(f @ (Fail::Op(_) | Fail::Special)) => return Err(o.failed(f, args, kwargs)),
                Err(f) => {
                    first.get_or_insert((o, f));
                }
                Ok(r) => return Ok(r),
            }
        }
        match first {
            Some((o, f)) => Err(o.failed(f, args, kwargs)),
            None => Err(PyRuntimeError::new_err(format!("aten::{} has no overload", self.base))),
        }
    }
    /// The names of its overloads.
    fn overloads(&self) -> Vec<&str> {
        self.all.iter().map(|o| o.shown()).collect()
    }
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyOverload>> {
        match self.all.iter().find(|o| o.shown() == name) {
            Some(o) => o.object(py),
            None if name.starts_with("__") => {
                Err(PyAttributeError::new_err(format!("'OpOverloadPacket' 'aten.{}' has no attribute '{name}'", self.base)))
            }
            None => Err(PyAttributeError::new_err(format!("The underlying op of 'aten.{}' has no overload name '{name}'", self.base))),
        }
    }
    fn __dir__(&self) -> Vec<&str> {
        self.overloads()
    }
    fn __iter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(slf.py(), slf.get().overloads())?.try_iter()?.into_any())
    }
    fn __repr__(&self) -> String {
        format!("<OpOverloadPacket(op='aten.{}')>", self.base)
    }
    fn __str__(&self) -> String {
        format!("aten.{}", self.base)
    }
    #[getter]
    fn __name__(&self) -> &str {
        &self.base
    }
    #[getter]
    fn _qualified_op_name(&self) -> String {
        format!("aten::{}", self.base)
    }
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.py().import("stowgrad._C")?.getattr("_packet")?, (slf.get().base.clone(),)))
    }
}
/// What an operation reads, writes and gives.
#[pyclass(name = "FunctionSchema", module = "stowgrad", frozen)]
pub struct Schema {
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    overload_name: String,
    arguments: Vec<Py<Argument>>,
    returns: Vec<Py<Argument>>,
}
impl Schema {
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        let mut parts = Vec::new();
        for a in self.arguments.iter().map(Py::get) {
            if a.kwarg_only && !parts.iter().any(|p| p == "*") {
                parts.push("*".to_owned());
            }
            parts.push(a.text(py)?);
        }
        let returns = self.returns.iter().map(|a| a.get().text(py)).collect::<PyResult<Vec<_>>>()?;
        let returns = if let [one] = &returns[..] { one.clone() } else { format!("({})", returns.join(", ")) };
        let overload = if self.overload_name.is_empty() { String::new() } else { format!(".{}", self.overload_name) };
        Ok(format!("{}{overload}({}) -> {returns}", self.name, parts.join(", ")))
    }
}
#[pymethods]
impl Schema {
    #[getter]
    fn arguments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.arguments.iter().map(|a| a.bind(py)))
    }
    #[getter]
    fn returns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.returns.iter().map(|a| a.bind(py)))
    }
    /// Whether it writes to an argument.
    #[getter]
    fn is_mutable(&self) -> bool {
        self.arguments.iter().any(|a| a.get().alias.is_some_and(|a| a.is_write))
    }
    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py)
    }
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py)
    }
}
/// One argument or result of an operation.
#[pyclass(module = "stowgrad", frozen)]
pub struct Argument {
    #[pyo3(get)]
    name: &'static str,
    kind: String,
    default: Option<Py<PyAny>>,
    #[pyo3(get)]
    kwarg_only: bool,
    #[pyo3(get)]
    is_out: bool,
    alias: Option<AliasInfo>,
}
impl Argument {
    /// `Tensor(a!) self`, `Scalar alpha=1`, `*`-free.
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        let mut s = match &self.alias {
            Some(a) => {
                let mark = format!("({}{}{})", a.set, if a.is_write { "!" } else { "" }, if a.many { " -> *" } else { "" });
                match self.kind.split_once('[') {
                    Some((base, rest)) => format!("{base}{mark}[{rest}"),
                    None => format!("{}{mark}", self.kind),
                }
            }
            None => self.kind.clone(),
        };
        if !self.name.is_empty() {
            s += " ";
            s += self.name;
        }
        if let Some(d) = &self.default {
            let d = d.bind(py);
            s += "=";
            s += &match d.extract::<String>() {
                Ok(text) => format!("\"{text}\""),
                Err(_) => d.repr()?.to_string(),
            };
        }
        Ok(s)
    }
}
#[pymethods]
impl Argument {
    #[getter]
    fn r#type(&self) -> String {
        self.kind.trim_end_matches('?').to_owned()
    }
    #[getter]
    fn real_type(&self) -> &str {
        &self.kind
    }
    #[getter]
    fn default_value<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.default.as_ref().map(|d| d.bind(py).clone())
    }
    fn has_default_value(&self) -> bool {
        self.default.is_some()
    }
    #[getter]
    fn alias_info(&self) -> Option<AliasInfo> {
        self.alias
    }
    #[getter(N)]
    fn length(&self) -> Option<usize> {
        None
    }
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py)
    }
}
/// Which memory an argument or result shares with others, and whether it is written.
#[pyclass(name = "_AliasInfo", module = "stowgrad._C", frozen, from_py_object)]
#[derive(Clone, Copy)]
pub struct AliasInfo {
    set: &'static str,
    #[pyo3(get)]
    is_write: bool,
    /// The results are many.
    many: bool,
}
#[pymethods]
impl AliasInfo {
    #[getter]
    fn before_set<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PySet>> {
        PySet::new(py, [self.set])
    }
    #[getter]
    fn after_set<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PySet>> {
        PySet::new(py, [if self.many { "*" } else { self.set }])
    }
}
/// All overloads of an operation by name; AttributeError if there is none.
#[pyfunction]
fn _packet<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyPacket>> {
    packet(py, name)?.ok_or_else(|| PyAttributeError::new_err(format!("'_OpNamespace' 'aten' object has no attribute '{name}'")))
}
/// One overload by the operation's and its own name.
#[pyfunction]
fn _overload<'py>(py: Python<'py>, name: &str, overload: &str) -> PyResult<Bound<'py, PyOverload>> {
    _packet(py, name)?.get().__getattr__(py, if overload.is_empty() { "default" } else { overload })
}
/// The names of all operations.
#[pyfunction]
fn _packets() -> Vec<&'static str> {
    registry().by_base.keys().map(String::as_str).collect()
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyOverload>()?;
    m.add_class::<PyPacket>()?;
    m.add_class::<Schema>()?;
    m.add_class::<Argument>()?;
    m.add_class::<AliasInfo>()?;
    m.add_function(wrap_pyfunction!(_packet, m)?)?;
    m.add_function(wrap_pyfunction!(_overload, m)?)?;
    m.add_function(wrap_pyfunction!(_packets, m)?)
}
