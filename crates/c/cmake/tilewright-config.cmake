# find_package(tilewright) gives tilewright::tilewright (shared) and tilewright::static.
get_filename_component(_tilewright_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET tilewright::tilewright)
  add_library(tilewright::tilewright SHARED IMPORTED)
  set_target_properties(tilewright::tilewright PROPERTIES
    IMPORTED_LOCATION "${_tilewright_prefix}/lib/libtilewright.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_tilewright_prefix}/include")
  find_package(Threads REQUIRED)
  add_library(tilewright::static STATIC IMPORTED)
  set_target_properties(tilewright::static PROPERTIES
    IMPORTED_LOCATION "${_tilewright_prefix}/lib/libtilewright.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_tilewright_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()
unset(_tilewright_prefix)
