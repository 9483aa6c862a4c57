//! The same elements as another dtype or on another device: `to` and its short forms.
use super::dtype::{PyDType, PyDevice};
use super::literal::on_cpu;
use super::wrap;
use crate::dtype::DType;
use crate::error::{Result, bail};
use crate::ops;
use crate::ops::macros::function;
use crate::tape::Tensor;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

function! {
    /// The elements as another dtype; `self` where nothing is to be done.
    fn to_dtype(self_; dtype: DType, non_blocking: bool = false, copy: bool = false; *, memory_format: Option<String> = None) -> Tensor;
    overload to;
    on [method];
    {
        converted(self_, dtype, copy)
    }
}
fn converted(t: &Tensor, dtype: DType, copy: bool) -> Result<Tensor> {
    if copy || t.dtype() != dtype { ops::to_copy(t, dtype) } else { Ok(t.clone()) }
}
function! {
    /// The elements on another device, or as another dtype.
    fn to_device(self_; device: Option<PyDevice> = None, dtype: Option<DType> = None, non_blocking: bool = false, copy: bool = false; *, memory_format: Option<String> = None) -> Tensor;
    overload to;
    on [method];
    {
        on_cpu(&device)?;
        converted(self_, dtype.unwrap_or_else(|| self_.dtype()), copy)
    }
}
function! {
    /// The elements with the dtype and on the device of another tensor.
    fn to_other(self_, other; non_blocking: bool = false, copy: bool = false; *, memory_format: Option<String> = None) -> Tensor;
    overload to;
    on [method];
    {
        converted(self_, other.dtype(), copy)
    }
}
function! {
    /// The tensor in the memory of the CPU: itself.
    fn cpu(self_; *, memory_format: Option<String> = None) -> Tensor;
    on [method];
    {
        Ok(self_.clone())
    }
}
function! {
    /// The tensor on a CUDA device.
    fn cuda(self_; device: Option<PyDevice> = None, non_blocking: bool = false; *, memory_format: Option<String> = None) -> Tensor;
    on [method];
    {
        device.unwrap_or(PyDevice { kind: "cuda", index: None }).check()?;
        Ok(self_.clone())
    }
}
macro_rules! casts { ($($name:ident $dtype:ident $doc:literal;)*) => { $(function! {
    #[doc = $doc]
    fn $name(self_; *, memory_format: Option<String> = None) -> Tensor;
    on [method];
    {
        converted(self_, DType::$dtype, false)
    }
})* } }
/// Under names that are also Rust's.
mod casts {
    use super::*;
    casts! {
        float Float32 "The elements as float32.";
        double Float64 "The elements as float64.";
        half Float16 "The elements as float16.";
        bfloat16 BFloat16 "The elements as bfloat16.";
        long Int64 "The elements as int64.";
        int Int32 "The elements as int32.";
        short Int16 "The elements as int16.";
        char Int8 "The elements as int8.";
        byte UInt8 "The elements as uint8.";
    }
    function! {
        /// The elements as bool: whether they are not 0.
        fn to_bool(self_; *, memory_format: Option<String> = None) -> Tensor;
        overload bool;
        on [method];
        {
            converted(self_, DType::Bool, false)
        }
    }
}
function! {
    /// Without argument the name of the tensor's type, `torch.FloatTensor`; with a dtype, or such a name, the elements as that type.
    fn type_(self_; dtype: Option<Py<PyAny>> = None, non_blocking: bool = false) -> Py<PyAny>;
    overload r#type;
    on [method];
    {
        Python::attach(|py| {
            let Some(d) = dtype else { return Ok(format!("torch.{}Tensor", self_.dtype().torch_name()).into_py_any(py)?) };
            let d = d.bind(py);
            let named = d.extract::<String>().ok().and_then(|s| {
                let s = s.rsplit('.').next()?.strip_suffix("Tensor")?.to_owned();
                DType::ALL.into_iter().find(|d| d.torch_name() == s)
            });
            let to = match (d.cast::<PyDType>(), named) {
                (Ok(d), _) => d.get().0,
                (_, Some(d)) => d,
                _ => bail!(Value, "invalid type: {}", d),
            };
            Ok(wrap(py, converted(self_, to, false)?)?.into_any().unbind())
        })
    }
}
