# find_package(tilewright) gives tilewright::tilewright (shared) and tilewright::static. This file stands in PREFIX/lib/cmake/tilewright
# (scripts/install-c) or PREFIX/share/cmake/tilewright (cargo-c, which has the libraries where the system does: lib, lib64, lib/x86_64-linux-gnu).
get_filename_component(_tilewright_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
foreach(_tilewright_kind so a)
  file(GLOB _tilewright_${_tilewright_kind} "${_tilewright_prefix}/lib*/libtilewright.${_tilewright_kind}"
    "${_tilewright_prefix}/lib/*/libtilewright.${_tilewright_kind}")
  if(_tilewright_${_tilewright_kind})
    list(GET _tilewright_${_tilewright_kind} 0 _tilewright_${_tilewright_kind})
  endif()
endforeach()
if(NOT _tilewright_so OR NOT _tilewright_a)
  set(tilewright_FOUND FALSE)
  set(tilewright_NOT_FOUND_MESSAGE "libtilewright.so and libtilewright.a are not in ${_tilewright_prefix}/lib: install them again")
elseif(NOT TARGET tilewright::tilewright)
  add_library(tilewright::tilewright SHARED IMPORTED)
  set_target_properties(tilewright::tilewright PROPERTIES
    IMPORTED_LOCATION "${_tilewright_so}"
    INTERFACE_INCLUDE_DIRECTORIES "${_tilewright_prefix}/include")
  find_package(Threads REQUIRED)
  add_library(tilewright::static STATIC IMPORTED)
  set_target_properties(tilewright::static PROPERTIES
    IMPORTED_LOCATION "${_tilewright_a}"
    INTERFACE_INCLUDE_DIRECTORIES "${_tilewright_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()
unset(_tilewright_prefix)
